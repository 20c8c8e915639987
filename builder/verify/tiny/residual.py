"""The residual stream of the constructed model: which coordinates mean what, and how a layer reads and writes them.

Before rotation the hidden state is

    [ code of the token | layer 0: attention, MLP | layer 1: attention, MLP | ... | constant | parity | unused ]

Each stage before the constant has `vocab_size` coordinates and holds the code of one token: a row of the Hadamard
matrix. Two codes are orthogonal and a code has the squared length `vocab_size`, so that the length of the hidden state,
and with it the effect of every RMSNorm, is known in advance at each layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from builder.verify.tiny.rotation import Rotation, hadamard_matrix

if TYPE_CHECKING:
    from builder.verify.tiny.config import Preset
    from builder.verify.tiny.floats import Array
    from builder.verify.tiny.splitmix import SplitMix64

CONSTANT_SHARE = 4.0
PARITY_SHARE = 0.5
MARGIN = 6.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """The layout of the hidden state: `codes[t]` is token t's code; `rotation` turns plain coordinates into real ones.

    `constant` and `parity` are coordinates: the same number at every position, and a number whose sign is that of the
    token's parity; their amplitudes are `constant_amplitude` and `parity_amplitude`.
    """

    preset: Preset
    codes: Array
    rotation: Rotation

    @classmethod
    def drawn(cls, preset: Preset, stream: SplitMix64) -> Residual:
        """Draw the basis; token t has Hadamard row t + 1, since row 0 is the only one with a mean."""
        codes = np.roll(hadamard_matrix(preset.vocab_size), -1, axis=0)
        return cls(preset=preset, codes=codes, rotation=Rotation.drawn(preset.hidden_size, stream))

    @property
    def code_size(self) -> int:
        """Coordinates of a code."""
        return self.preset.vocab_size

    @property
    def code_length(self) -> float:
        """Euclidean length of a code."""
        return math.sqrt(self.code_size)

    @property
    def constant(self) -> int:
        """The coordinate that is the same at every position."""
        return (1 + 2 * self.preset.num_hidden_layers) * self.code_size

    @property
    def constant_amplitude(self) -> float:
        """Value of the constant coordinate."""
        return CONSTANT_SHARE * self.code_length

    @property
    def parity(self) -> int:
        """The coordinate whose sign tells odd tokens from even ones."""
        return self.constant + 1

    @property
    def parity_amplitude(self) -> float:
        """Absolute value of the parity coordinate."""
        return PARITY_SHARE * self.code_length

    def token_stage(self) -> slice:
        """Coordinates of the code of the position's own token."""
        return self._stage(0)

    def attention_stage(self, layer: int) -> slice:
        """Coordinates that a layer's attention writes."""
        return self._stage(1 + 2 * layer)

    def mlp_stage(self, layer: int) -> slice:
        """Coordinates that a layer's MLP writes; -1: the token's own code, which layer 0 reads."""
        return self._stage(2 + 2 * layer)

    def rms(self, stages_written: int) -> float:
        """Root mean square of the hidden state when `stages_written` codes beside the token's own are in it."""
        shares = 1.0 + CONSTANT_SHARE**2 + PARITY_SHARE**2 + stages_written
        return math.sqrt(self.code_size * shares / self.preset.hidden_size)

    def reader(self, matrix: Array, gain: Array) -> Array:
        """Return the weight that applies `matrix` [n, hidden] to plain coordinates after an RMSNorm with `gain`."""
        return self.rotation.of_inputs(matrix) / gain

    def writer(self, matrix: Array) -> Array:
        """Return the weight that adds the outputs of `matrix` [hidden, n] to plain coordinates."""
        return self.rotation.of_outputs(matrix)

    def embedding(self) -> Array:
        """Return the embedding table [vocab, hidden]: code, constant, parity."""
        table = np.zeros((self.preset.vocab_size, self.preset.hidden_size))
        table[:, self.token_stage()] = self.codes
        table[:, self.constant] = self.constant_amplitude
        table[:, self.parity] = self.parity_amplitude * np.where(np.arange(self.preset.vocab_size) % 2, 1.0, -1.0)
        return self.rotation.of_inputs(table)

    def head(self, gain: Array, runner_up: list[int]) -> Array:
        """Return the output head [vocab, hidden]: the right token gets twice MARGIN, its runner-up once MARGIN.

        `runner_up[t]` is the token whose code also counts, by half, for token t; so the second place is always another
        token, and the distance between both is a thermometer of everything that came before.
        """
        preset = self.preset
        matrix = np.zeros((preset.vocab_size, preset.hidden_size))
        unit = MARGIN / self.code_size * self.rms(2 * preset.num_hidden_layers)
        matrix[:, self.mlp_stage(preset.num_hidden_layers - 1)] = unit * (2.0 * self.codes + self.codes[runner_up])
        return self.reader(matrix, gain)

    def _stage(self, number: int) -> slice:
        return slice(number * self.code_size, (number + 1) * self.code_size)
