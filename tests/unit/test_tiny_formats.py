"""The number formats, the file format and the drawn numbers of the tiny checkpoint, against known values."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from builder.errors import InvalidDocumentError
from builder.verify.tiny.floats import (
    GRID,
    bfloat16_bits,
    bfloat16_values,
    e4m3_octets,
    e4m3_values,
    settled,
)
from builder.verify.tiny.nvfp4 import (
    Quantised,
    dequantise,
    power_of_two_above,
    quantise,
    tensor_scale_for,
    unpack,
)
from builder.verify.tiny.rotation import Rotation, hadamard_matrix
from builder.verify.tiny.safetensors import F8_E4M3, Tensor, read_safetensors, write_safetensors
from builder.verify.tiny.splitmix import SplitMix64


def test_splitmix64_gives_the_published_numbers() -> None:
    stream = SplitMix64(1234567)
    assert [stream.draw() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_permutation_holds_every_number_once() -> None:
    order = SplitMix64(5).permutation(64)
    assert sorted(order) == list(range(64))
    assert order != sorted(order)


def test_norm_weights_stay_between_a_half_and_one_and_a_half() -> None:
    gains = SplitMix64(5).gains(512)
    assert (gains.min() >= 0.5, gains.max() <= 1.5, len(np.unique(gains)) > 300) == (True, True, True)


@pytest.mark.parametrize(
    ("octet", "value"),
    [(0x00, 0.0), (0x01, 2.0**-9), (0x08, 2.0**-6), (0x38, 1.0), (0x39, 1.125), (0x7E, 448.0), (0xB8, -1.0)],
)
def test_an_e4m3_byte_has_its_value(octet: int, value: float) -> None:
    assert e4m3_values(np.array([octet], dtype=np.uint8))[0] == value


def test_e4m3_has_no_infinity_and_one_nan_of_each_sign() -> None:
    values = e4m3_values(np.arange(256, dtype=np.uint8))
    assert np.flatnonzero(np.isnan(values)).tolist() == [0x7F, 0xFF]
    assert not np.isinf(values).any()


def test_every_finite_e4m3_value_is_its_own_nearest_byte() -> None:
    octets = np.arange(0x7F, dtype=np.uint8)
    assert np.array_equal(e4m3_octets(e4m3_values(octets)), octets)


@pytest.mark.parametrize(
    ("value", "octet"), [(1.0625, 0x38), (1.1875, 0x3A), (1.07, 0x39), (460.0, 0x7E), (1e9, 0x7E), (0.0, 0x00)]
)
def test_e4m3_rounds_ties_to_even_and_saturates(value: float, octet: int) -> None:
    assert e4m3_octets(np.array([value]))[0] == octet


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3F80), (-2.5, 0xC020), (1.00390625, 0x3F80), (1.01171875, 0x3F82), (1.005, 0x3F81), (0.0, 0x0000)],
)
def test_bfloat16_rounds_ties_to_even(value: float, bits: int) -> None:
    assert bfloat16_bits(np.array([value]))[0] == bits


def test_bfloat16_values_are_exact_in_both_directions() -> None:
    bits = np.array([0x0000, 0x3F80, 0xC020, 0x7F7F, 0x0080], dtype=np.uint16)
    assert np.array_equal(bfloat16_bits(bfloat16_values(bits)), bits)


def test_a_settled_value_forgets_the_last_bits_only() -> None:
    assert settled(1.0 / 3.0) == settled(np.nextafter(1.0 / 3.0, 1.0))
    assert settled(1.0 / 3.0) == pytest.approx(1.0 / 3.0, abs=0.5 / GRID)


def test_two_fp4_codes_share_a_byte_the_even_column_low() -> None:
    packed = np.array([[0x71, 0x9F]], dtype=np.uint8)
    assert unpack(packed).tolist() == [[0.5, 6.0, -6.0, -0.5]]


def test_fp4_rounds_each_tie_to_the_even_code() -> None:
    row = np.array([[6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0, 0.0]])
    expected = [6.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 0.0, -1.0, -1.0, -2.0, -2.0, -4.0, -4.0, 0.0]
    quantised = quantise(row, 1.0)
    assert quantised.scales.tolist() == [[0x38]]
    assert dequantise(quantised).tolist() == [expected]


def test_a_dequantised_weight_is_code_times_block_scale_times_tensor_scale() -> None:
    packed = np.full((1, 16), 0x22, dtype=np.uint8)
    weight = Quantised(packed=packed, scales=np.array([[0x38, 0x40]], dtype=np.uint8), tensor_scale=0.25)
    assert dequantise(weight).tolist() == [[0.25] * 16 + [0.5] * 16]


def test_quantising_twice_changes_nothing_more() -> None:
    stream = SplitMix64(11)
    weight = np.array([[stream.below(2001) / 1000 - 1 for _ in range(64)] for _ in range(8)])
    once = quantise(weight, tensor_scale_for(1.0))
    again = quantise(dequantise(once), once.tensor_scale)
    assert np.array_equal(dequantise(again), dequantise(once))
    assert np.abs(dequantise(once) - weight).max() <= (1 + 1 / 16) / 6


@pytest.mark.parametrize(("value", "power"), [(1.0, 1.0), (1.0001, 2.0), (0.5, 0.5), (0.3, 0.5), (3.0, 4.0)])
def test_the_power_of_two_above_is_the_smallest_one(value: float, power: float) -> None:
    assert power_of_two_above(value) == power


def test_a_rotation_is_the_hadamard_matrix_with_signs_and_an_order() -> None:
    rotation = Rotation.drawn(12, SplitMix64(3))
    assert [block.size for block in rotation.blocks] == [8, 4]
    matrix = np.zeros((12, 12))
    for block in rotation.blocks:
        two = np.array([[1.0, 1.0], [1.0, -1.0]])
        hadamard = two
        while len(hadamard) < block.size:
            hadamard = np.kron(two, hadamard)
        part = slice(block.start, block.start + block.size)
        matrix[part, part] = (hadamard * block.signs)[list(block.order)] / np.sqrt(block.size)
    assert rotation.of_inputs(np.eye(12)) == pytest.approx(matrix.T, abs=1e-15)
    assert rotation.of_outputs(np.eye(12)) == pytest.approx(matrix, abs=1e-15)
    assert matrix @ matrix.T == pytest.approx(np.eye(12), abs=1e-12)


def test_the_rows_of_a_hadamard_matrix_are_orthogonal() -> None:
    codes = hadamard_matrix(32)
    assert np.array_equal(codes @ codes.T, 32 * np.eye(32))
    assert codes[1:].sum(axis=1).tolist() == [0.0] * 31


def test_a_safetensors_file_is_a_length_a_json_header_and_the_bytes_in_order() -> None:
    scale = Tensor.f32(np.array(0.5))
    half = Tensor.bf16(np.array([[1.0, -2.5]]))
    data = write_safetensors({"b": half, "a": Tensor.octets(np.array([7], dtype=np.uint8)), "c": scale})
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert header == {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [8, 9]},
        "b": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [4, 8]},
        "c": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
    }
    assert data[8 + length :] == struct.pack("<f", 0.5) + b"\x80\x3f\x20\xc0" + b"\x07"


def test_a_safetensors_file_is_read_back() -> None:
    tensors = {
        "scale": Tensor.octets(np.array([[0x38, 0x40]], dtype=np.uint8), F8_E4M3),
        "plain": Tensor.bf16(np.array([1.5, -3.0])),
    }
    seen = read_safetensors(write_safetensors(tensors))
    assert seen == tensors
    assert (seen["scale"].values().tolist(), seen["plain"].values().tolist()) == ([[1.0, 2.0]], [1.5, -3.0])


def test_a_truncated_safetensors_file_is_refused_by_tensor() -> None:
    data = write_safetensors({"plain": Tensor.bf16(np.zeros(8))})
    with pytest.raises(InvalidDocumentError, match="plain"):
        read_safetensors(data[:-1])
