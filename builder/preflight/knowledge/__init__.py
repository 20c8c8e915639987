"""What is known of the field as data, each table with its source; nothing here decides anything."""
