"""Broken profiles and XMP are noted, wherever the picture keeps them; whole ones are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PIL import Image, ImageCms

from wellfed.pipeline.decode.header import read_header
from wellfed.pipeline.decode.metadata import is_whole_exif, is_whole_profile, is_whole_xmp

PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
PACKET = b"<?xpacket begin='\xef\xbb\xbf' id='W5M0MpCehiHzreSzNTczkc9d'?><x:xmpmeta/>\n<?xpacket end='w'?>"


def exif() -> bytes:
    made = Image.Exif()
    made[0x0112], made[0x010E] = 6, "a description of more than four bytes"
    return made.tobytes()


def test_exif_is_whole_where_its_directory_and_values_lie_within_it() -> None:
    assert is_whole_exif(exif())
    assert is_whole_exif(Image.Exif().tobytes())
    outside = b"Exif\0\0MM\0*" + b"\xff" * 24
    for broken in (b"", b"Exif\0\0", b"Exif\0\0II*\0garbage", exif()[:-8], exif()[:20], outside):
        assert not is_whole_exif(broken), broken


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_broken_exif_is_noted(encode: Callable[..., bytes], form: str) -> None:
    assert read_header(encode(form, exif=exif())).notes == ("exif_orientation",)
    assert read_header(encode(form, exif=b"Exif\0\0II*\0garbage")).notes == ("broken_exif",)


def test_a_profile_is_whole_with_its_signature_and_its_length() -> None:
    assert is_whole_profile(PROFILE)
    for broken in (None, b"", PROFILE[:100], PROFILE[:-1], PROFILE[:36] + b"acsq" + PROFILE[40:], bytes(300)):
        assert not is_whole_profile(broken)


def test_a_packet_is_whole_where_it_is_xml() -> None:
    assert is_whole_xmp(PACKET)
    assert is_whole_xmp(PACKET.decode() + "  \0\0")
    for broken in (
        b"",
        b"\xff\xfe\0",
        b"<x:xmpmeta>",
        PACKET[:-30] + b"<",
        b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
    ):
        assert not is_whole_xmp(broken)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_a_broken_profile_is_noted(encode: Callable[..., bytes], form: str) -> None:
    assert read_header(encode(form, icc_profile=PROFILE)).notes == ()
    assert read_header(encode(form, icc_profile=PROFILE[:200])).notes == ("broken_icc",)


@pytest.mark.parametrize("form", ["JPEG", "WEBP"])
def test_a_broken_packet_is_noted(encode: Callable[..., bytes], form: str) -> None:
    assert read_header(encode(form, xmp=PACKET)).notes == ()
    assert read_header(encode(form, xmp=b"<x:xmpmeta>")).notes == ("broken_xmp",)
