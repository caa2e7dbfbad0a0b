"""Changes of colour, in place, for whole batches with a parameter for each sample.

Pictures are float32 of shape (n, 3, H, W) that hold whole numbers from 0 to 255; so they do again afterwards, since
torchvision rounds to uint8 after each operation, and one after the other must give what it gives.

Every step is a single rounding of IEEE arithmetic, or exact: no multiply-add whose one or two roundings depend on the
device, no sum whose result depends on its order, no division by a constant, which CUDA turns into a product. So pixels
are the same on the CPU and on CUDA, whatever the batch and the number of threads.
"""

from __future__ import annotations

import torch

__all__ = [
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "adjust_sharpness",
    "autocontrast",
    "equalize",
    "make_gray",
    "posterize",
    "solarize",
]

HUE_TO_BYTE = 255.999 / 255
"""torchvision's rounding of a hue shift: 0..1 times 255.999, cut off. Here 0..255 times this."""


def _each(values: torch.Tensor) -> torch.Tensor:
    """One value for each sample, shaped to meet pictures."""
    return values.view(-1, 1, 1, 1)


def luminance(pictures: torch.Tensor) -> torch.Tensor:
    """0.2989 r + 0.587 g + 0.114 b, cut to whole numbers; shape (n, 1, H, W).

    In whole ten-thousandths every product and sum is exact in float32, and the half keeps the one rounding that is left
    away from the next whole number.
    """
    red, green, blue = pictures[:, 0:1], pictures[:, 1:2], pictures[:, 2:3]
    gray = red * 2989.0
    gray += green * 5870.0
    gray += blue * 1140.0
    return gray.add_(0.5).mul_(1e-4).floor_()


def make_gray(pictures: torch.Tensor) -> None:
    """Put the luminance into all three channels."""
    pictures.copy_(luminance(pictures).expand_as(pictures))


def adjust_brightness(pictures: torch.Tensor, factors: torch.Tensor) -> None:
    """Multiply by factors of at least 0, shape (n,)."""
    pictures.mul_(_each(factors)).clamp_(0, 255).floor_()


def adjust_contrast(pictures: torch.Tensor, factors: torch.Tensor) -> None:
    """Away from, or towards, the mean luminance; factors of at least 0, shape (n,)."""
    gray = luminance(pictures)
    # Whole numbers add up exactly in float64, in any order.
    mean = gray.sum(dim=(1, 2, 3), dtype=torch.float64).mul_(1 / gray[0].numel()).float()
    pictures.mul_(_each(factors)).add_(_each(mean * (1 - factors))).clamp_(0, 255).floor_()


def adjust_saturation(pictures: torch.Tensor, factors: torch.Tensor) -> None:
    """Away from, or towards, each pixel's luminance; factors of at least 0, shape (n,)."""
    gray = luminance(pictures).mul_(_each(1 - factors))
    pictures.mul_(_each(factors)).add_(gray).clamp_(0, 255).floor_()


def adjust_hue(pictures: torch.Tensor, shifts: torch.Tensor) -> None:
    """Turn the colour circle by shifts of -0.5 .. 0.5 of it, shape (n,)."""
    red, green, blue = pictures.unbind(1)
    most = torch.maximum(torch.maximum(red, green), blue)
    least = torch.minimum(torch.minimum(red, green), blue)
    span = most - least
    # Sixths of the circle from the channel that is the most: red, else green, else blue. Choices are products with 0 or
    # 1, exact for whole numbers: `torch.where` takes fifteen times as long on the CPU. Without a span there is no hue,
    # and what comes out does not matter.
    by_green = torch.eq(most, green, out=torch.empty_like(most))
    by_red = torch.eq(most, red, out=torch.empty_like(most))
    hue = red - green
    hue += (blue - red).sub_(hue).mul_(by_green)
    hue += (green - blue).sub_(hue).mul_(by_red)
    hue /= span.clamp(min=1)
    hue += by_green.mul_(-2).add_(4).mul_(by_red.neg_().add_(1))
    hue += shifts.mul(6).view(-1, 1, 1)
    hue += torch.lt(hue, 0, out=by_red).mul_(6)
    hue -= torch.ge(hue, 6, out=by_red).mul_(6)
    # How far each channel stands between the least and the most, as a function of the hue: ramps of one sixth.
    for channel, (centre, sign, offset) in enumerate(((3.0, 1.0, -1.0), (2.0, -1.0, 2.0), (4.0, -1.0, 2.0))):
        ramp = hue.sub(centre).abs_().mul_(sign).add_(offset).clamp_(0, 1)
        pictures[:, channel] = ramp.mul_(span).add_(least).mul_(HUE_TO_BYTE).floor_()


def adjust_sharpness(pictures: torch.Tensor, factors: torch.Tensor) -> None:
    """Away from, or towards, a 3x3 smoothing (weights 1, centre 5, of 13); factors of at least 0, shape (n,).

    The outermost pixels stay as they are, and so do pictures of up to 2 pixels.
    """
    height, width = pictures.shape[-2:]
    if height <= 2 or width <= 2:
        return
    rows = pictures[:, :, :-2] + pictures[:, :, 1:-1]
    rows += pictures[:, :, 2:]
    smooth = rows[..., :-2] + rows[..., 1:-1]
    smooth += rows[..., 2:]
    inner = pictures[..., 1:-1, 1:-1]
    smooth += inner * 4.0
    # A thirteenth of a whole number is never halfway between two, so no rounding before this one matters.
    smooth.mul_(1 / 13).round_()
    inner += smooth.sub_(inner).mul_(_each(1 - factors))
    pictures.clamp_(0, 255).floor_()


def posterize(pictures: torch.Tensor, steps: torch.Tensor) -> None:
    """Round down to multiples of the steps, 2 ** (8 - bits), shape (n,): keep that many of the highest bits."""
    pictures.div_(_each(steps)).floor_().mul_(_each(steps))


def solarize(pictures: torch.Tensor, thresholds: torch.Tensor) -> None:
    """Invert what is not below the thresholds, shape (n,)."""
    bright = torch.ge(pictures, _each(thresholds), out=torch.empty_like(pictures))
    # x becomes x + (255 - 2 x); see `adjust_hue`.
    pictures += bright.mul_(pictures.mul(-2).add_(255))


def autocontrast(pictures: torch.Tensor) -> None:
    """Stretch each channel to 0 .. 255."""
    least = pictures.amin(dim=(2, 3), keepdim=True)
    most = pictures.amax(dim=(2, 3), keepdim=True)
    # A flat channel stays as it is. No `torch.where` with numbers: on CUDA it would wait for their copy.
    flat = torch.eq(most, least, out=torch.empty_like(most))
    scale = (most - least).mul_(1.0 / 255).add_(flat)
    pictures.sub_(least.mul_(flat.neg_().add_(1))).div_(scale).clamp_(0, 255).floor_()


def equalize(pictures: torch.Tensor) -> None:
    """Give each channel a flat histogram, by Pillow's rule as torchvision has it."""
    count, channels, height, width = pictures.shape
    values = pictures.view(count * channels, height * width).long()
    histogram = torch.zeros((count * channels, 256), dtype=torch.int64, device=pictures.device)
    histogram.scatter_add_(1, values, torch.ones(1, dtype=torch.int64, device=pictures.device).expand_as(values))
    reached = histogram.cumsum(1)
    # Pixels below the highest value that occurs, spread over 255 steps.
    last = histogram.gather(1, reached.argmax(1, keepdim=True))
    step = (values.shape[1] - last).div_(255, rounding_mode="floor")
    table = torch.zeros_like(histogram)
    table[:, 1:] = (reached[:, :-1] + step.div(2, rounding_mode="floor")).div_(step.clamp(min=1), rounding_mode="floor")
    # Too few pixels below it for a step: the channel stays as it is.
    table = torch.where(step == 0, torch.arange(256, device=pictures.device), table.clamp_(0, 255))
    pictures.copy_(table.float().gather(1, values).view_as(pictures))
