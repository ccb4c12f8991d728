"""Draws the documentation's pictures: `python docs/pictures/draw.py` writes them beside this file.

split.svg and flow.svg are drawn here, plan.png and pipeline.png by `mtf-hetero plan`, which takes some seconds.
"""

import contextlib
import io
import pathlib
import tempfile

from mtf_hetero._support import files

HERE = pathlib.Path(__file__).parent
COLOURS = {"gpu:0": "#0072B2", "gpu:1": "#009E73", "cpu:0": "#D55E00"}  # Okabe and Ito's
INK, SOFT, WAIT = "#1F2933", "#5F6C7B", "#E4E7EB"
SPEEDS = {"gpu:0": 70, "gpu:1": 25, "cpu:0": 5}
SPLITS = {"even": (20, 20, 20), "shares 70, 25, 5": (42, 15, 3)}


def text(x, y, words, *, size=14, anchor="start", colour=INK, weight="normal"):
    """Return a line of text whose baseline begins, ends or has its middle at (x, y)."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
        f'font-weight="{weight}">{words}</text>'
    )


def box(x, y, width, height, colour, *, stroke="none", radius=2):
    """Return a filled rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" fill="{colour}" '
        f'stroke="{stroke}"/>'
    )


def save(name, width, height, parts):
    """Write a picture on white ground."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif">'
    )
    body = "\n".join([head, box(0, 0, width, height, "#FFFFFF", radius=0), *parts, "</svg>"])
    files.write_text(HERE / name, body + "\n")


def draw_split():
    """60 filters divided evenly and by speed, and how long each device computes and waits; legible at 400 pixels."""
    left, scale_filters, time_left, scale_time = 20, 6.8, 82, 86
    parts = []
    for number, (name, sizes) in enumerate(SPLITS.items()):
        top = 16 + 212 * number
        seconds = [size / speed for size, speed in zip(sizes, SPEEDS.values(), strict=True)]
        end = time_left + max(seconds) * scale_time
        parts.append(text(left, top + 14, f"60 filters, {name}", size=17, weight="bold"))
        x = left
        for row, device in enumerate(SPEEDS):
            width, y = sizes[row] * scale_filters, top + 84 + 34 * row
            parts.append(box(x, top + 26, width - 2, 36, COLOURS[device]))
            middle = x + width / 2 - 1
            parts.append(
                text(middle, top + 50, str(sizes[row]), size=16, anchor="middle", colour="#FFFFFF", weight="bold")
            )
            x += width
            parts.append(text(left, y + 19, device, size=16))
            done = time_left + seconds[row] * scale_time
            parts.append(box(time_left, y, done - time_left, 26, COLOURS[device]))
            if end - done > 1:
                parts.append(box(done + 1, y, end - done - 1, 26, WAIT))
                parts.append(text((done + end) / 2, y + 19, "waits", size=15, anchor="middle", colour=SOFT))
        parts.append(
            f'<line x1="{end:g}" y1="{top + 78}" x2="{end:g}" y2="{top + 184}" stroke="{INK}" stroke-width="1.5"/>'
        )
        if number:
            faster = 20 / SPEEDS["cpu:0"] / max(seconds)
            parts.append(text(end + 14, top + 136, f"all end together: {faster:.1f}x as fast", size=17, weight="bold"))
    save("split.svg", 448, 424, parts)


STEPS = (  # of the data flow: (column, row, title, lines)
    (0, 0, "your mtf program", ("mtf.Graph of named", "dimensions; no layout")),
    (0, 1, "speeds", ("shares that you give,", "or measured times")),
    (1, 0, "a recipe", ("LAYOUTS[name](graph,", "mesh_shape, shares)")),
    (2, 0, "Layout", ("which dimension, over", "which axis, what sizes")),
    (3, 0, "Lowering", ("a rule per operation,", "for unequal slices")),
    (4, 0, "TensorFlow graph", ("a part on each device,", "gRPC between them")),
    (4, 1, "training", ("Estimator: steps, faults,", "summaries, traces")),
    (3, 1, "checkpoints", ("logical tensors, for", "any other layout")),
)
ARROWS = (((0, 0), (1, 0)), ((0, 1), (1, 0)), ((1, 0), (2, 0)), ((2, 0), (3, 0)), ((3, 0), (4, 0)), ((4, 0), (4, 1)))
ARROWS = (*ARROWS, ((4, 1), (3, 1)))
WIDTH, HEIGHT, GAP = 172, 86, 34


def draw_flow():
    """From a program to a trained network."""
    tip = f'<path d="M0,0 L8,4 L0,8 z" fill="{SOFT}"/>'
    marker = f'<marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">{tip}</marker>'
    parts = [f"<defs>{marker}</defs>"]

    def corner(place):
        return 14 + place[0] * (WIDTH + GAP), 14 + place[1] * (HEIGHT + 44)

    for begin, end in ARROWS:
        (x1, y1), (x2, y2) = corner(begin), corner(end)
        if begin[1] == end[1]:
            forward = x2 > x1
            x1, x2 = (x1 + WIDTH, x2 - 2) if forward else (x1, x2 + WIDTH + 2)
            y1 = y2 = y1 + HEIGHT / 2
        elif begin[0] == end[0]:
            x1 = x2 = x1 + WIDTH / 2
            y1, y2 = y1 + HEIGHT, y2 - 2
        else:
            x1, y1, x2, y2 = x1 + WIDTH, y1 + HEIGHT / 2, x2 + WIDTH / 2, y2 + HEIGHT + 2
            parts.append(
                f'<path d="M{x1:g},{y1:g} L{x2:g},{y1:g} L{x2:g},{y2:g}" fill="none" stroke="{SOFT}" '
                'stroke-width="1.6" marker-end="url(#tip)"/>'
            )
            continue
        parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{SOFT}" stroke-width="1.6" '
            'marker-end="url(#tip)"/>'
        )
    for column, row, title, lines in STEPS:
        x, y = corner((column, row))
        ours = title in ("a recipe", "Layout", "Lowering")
        parts.append(
            box(x, y, WIDTH, HEIGHT, "#E6F1F8" if ours else "#F5F7FA", stroke="#0072B2" if ours else "#C5CCD3")
        )
        parts.append(text(x + WIDTH / 2, y + 27, title, size=15, anchor="middle", weight="bold"))
        for number, line in enumerate(lines):
            parts.append(text(x + WIDTH / 2, y + 49 + 18 * number, line, size=13, anchor="middle", colour=SOFT))
    save("flow.svg", 5 * WIDTH + 4 * GAP + 28, 2 * HEIGHT + 44 + 28, parts)


DEVICES = """
devices:
  - {kind: RTX-3090}
  - {kind: GTX-1080}
  - {kind: EPYC-7742, name: CPU}
link: {latency_seconds: 5e-6, bytes_per_second: 2.5e10}
"""
ON_A_SLOW_LINK = """
devices:
  - {name: "cpu:0", flops_per_second: 1.0e+11, bytes_per_second: 1.0e+10}
  - {name: "cpu:1", flops_per_second: 6.0e+10, bytes_per_second: 6.0e+9}
link: {latency_seconds: 2.0e-4, bytes_per_second: 1.2e+7}
"""


def draw_plan(name, words, batch_size):
    """VGG-16 on some devices, as it is planned."""
    from mtf_hetero.cli import plan

    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
        devices = pathlib.Path(directory, "devices.yaml")
        devices.write_text(words, encoding="utf-8")
        flags = [
            "--model=vgg16",
            "--image_size=32",
            f"--batch_size={batch_size}",
            f"--simulate={devices}",
            f"--picture={HERE / name}",
        ]
        if plan.main(flags):
            raise SystemExit("the plan could not be drawn")


if __name__ == "__main__":
    draw_split()
    draw_flow()
    draw_plan("plan.png", DEVICES, 128)
    draw_plan("pipeline.png", ON_A_SLOW_LINK, 64)
