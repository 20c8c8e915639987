"""What came out of a matrix, told to people and to other programs: a page, Markdown, JUnit, a table."""
