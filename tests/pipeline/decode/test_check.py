"""The full check: what is rejected, what is noted, and that the C extension and Pillow say the same."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from wellfed.pipeline.decode import check
from wellfed.pipeline.decode.jpegmarkers import count_scans
from wellfed.pipeline.errors import SampleRejectedError

Encode = Callable[..., bytes]
SOS = b"\xff\xda"


@pytest.fixture(params=("extension", "pillow"))
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of checking, one after the other."""
    if request.param == "pillow":
        monkeypatch.setattr(check, "_native", None)
    elif check._native is None:
        pytest.skip("the C extension is not built")
    return str(request.param)


def refusal(data: bytes) -> str:
    with pytest.raises(SampleRejectedError) as caught:
        check.check_image(data, "decode")
    return str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"progressive": True},
        {"mode": "L"},
        {"mode": "CMYK"},
        {"subsampling": "4:4:4"},
        {"subsampling": "4:1:1"},
        {"restart_marker_blocks": 3},
    ],
)
def test_whole_jpegs_pass_and_cut_ones_do_not(decoder: str, encode: Encode, options: dict[str, object]) -> None:
    data = encode("JPEG", **options)
    assert "decoder_warnings" not in check.check_image(data, "decode").notes
    for length in (len(data) // 2, len(data) * 9 // 10, len(data) - 2):
        assert "truncated" in refusal(data[:length]).lower()


def test_damage_that_the_decoder_works_around_is_a_note(encode: Encode) -> None:
    if check._native is None:
        pytest.skip("the C extension is not built")
    # Two bytes of no marker before the end of image: libjpeg warns of extraneous data.
    data = encode("JPEG")
    assert check.check_image(data[:-2] + b"\xff\xd0\x00" + data[-2:], "decode").notes == ("decoder_warnings",)


def test_scans_made_to_waste_time_are_refused_and_long_metadata_is_not(decoder: str, encode: Encode) -> None:
    data = encode("JPEG", progressive=True)
    last = data.rindex(SOS)
    scan = data[last:-2]
    assert count_scans(data) == data.count(SOS)
    enough = check.MAX_SCANS - count_scans(data)
    check.check_image(data[:-2] + scan * enough + data[-2:], "decode")
    assert "at most 500 scans" in refusal(data[:-2] + scan * (enough + 1) + data[-2:])
    # A comment and a second picture behind the end may hold as many marks as they like.
    comment = b"\xff\xfe" + (2 + 2 * 600).to_bytes(2) + SOS * 600
    check.check_image(data[:2] + comment + data[2:] + SOS * 600, "decode")


def test_only_the_header_level_passes_damaged_pixels(encode: Encode) -> None:
    data = encode("JPEG")
    assert check.check_image(data[: len(data) - 2], "header").format == "JPEG"


def mutants(images: list[bytes], count: int, rng: random.Random) -> list[bytes]:
    """Images cut, with bytes changed in the data or the header, and with a piece missing."""
    made = []
    for number in range(count):
        data = bytearray(images[number % len(images)])
        match number % 5:
            case 0:
                del data[rng.randrange(2, len(data)) :]
            case 1:
                del data[len(data) - rng.randrange(1, 5) :]
            case 2:
                for _ in range(rng.choice((1, 3, 20))):
                    data[rng.randrange(2, len(data))] = rng.randrange(256)
            case 3:
                data[rng.randrange(2, 700)] = rng.randrange(256)
            case _:
                place = rng.randrange(2, len(data))
                del data[place : place + rng.randrange(1, 400)]
        made.append(bytes(data))
    return made


def verdict(data: bytes) -> tuple[str, ...]:
    """Accepted with its notes, but for the one that only the extension can give, or rejected with the words."""
    try:
        return ("accepted", *(set(check.check_image(data, "decode").notes) - {"decoder_warnings"}))
    except SampleRejectedError as error:
        return ("rejected", str(error))


def test_the_extension_and_pillow_agree(encode: Encode, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extension = check._native
    if extension is None:
        pytest.skip("the C extension is not built")
    odd = repository.parent / "shared" / "data" / "odd-images"
    files = [path.read_bytes() for path in sorted(odd.rglob("*")) if path.is_file()]
    noise = Image.frombytes("RGB", (90, 70), random.Random(3).randbytes(90 * 70 * 3))
    buffer = io.BytesIO()
    noise.save(buffer, "JPEG", quality=80)
    whole = [
        buffer.getvalue(),
        *(encode("JPEG", **each) for each in ({"progressive": True}, {"mode": "L"}, {"mode": "CMYK"}, {"quality": 97})),
    ]
    images = [*files, *mutants(whole, 300, random.Random(11))]
    native = [verdict(each) for each in images]
    monkeypatch.setattr(check, "_native", None)
    assert native == [verdict(each) for each in images]
    # The mutants are no trivial ones: many of each kind.
    kinds = [each[0] for each in native[len(files) :]]
    assert min(kinds.count("accepted"), kinds.count("rejected")) > 60
