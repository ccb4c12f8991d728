"""Made-up rows of each case of the benchmarks."""

import numpy as np

from benchmarks.cases.lowering import Lowering
from benchmarks.cases.one_device import CONTENDERS
from benchmarks.pictures import pack
from benchmarks.rows import Writer, summarise

SPREAD = summarise([1.0, 1.5, 2.0])


def write_one_device(directory):
    writer = Writer("one_device", directory)
    for name, contender in CONTENDERS.items():
        row = {
            "network": "vgg16",
            "batch_size": 64,
            "contender": name,
            "seed": 1,
            "warmup": 3,
            "steps": 2,
            "repeats": 3,
        }
        if name == "PyTorch, compiled":
            writer.write(name, {**row, "failed": "RuntimeError: no compiler"})
            continue
        row |= {"wall_seconds_per_step": SPREAD, "cpu_seconds_per_step": SPREAD, "parameters": 7, "threads": "two"}
        row |= {"flops_per_step": 3e9, "gflops_per_second": 2.0, "others_cpu_share": 0.01, "max_memory_bytes": 2**30}
        if not contender.is_peak:
            row |= {"wall_ratio": SPREAD, "cpu_ratio": SPREAD, "losses": [2.5, 2.4]}
        writer.write(name, row)


def write_lowering(directory):
    writer = Writer("lowering", directory)
    case = Lowering(processors=(1, 8), first_steps=(8,))
    for variant in case.variants():
        row = case.settings(variant)
        if variant == "batch/8/stock mtf, even":
            writer.write(variant, {**row, "failed": "ValueError: does not divide"})
            continue
        row |= {"build_seconds": SPREAD, "lower_seconds": SPREAD, "max_memory_bytes": SPREAD, "mtf_operations": 9}
        row |= {"tf_operations": 100 * row["processors"], "graph_bytes": 10**6, "layout": [], "rules_left_out": ["x"]}
        if variant == "filters/8/first steps":
            row |= dict.fromkeys(["initial_seconds", "first_step_seconds", "step_seconds"], SPREAD)
        writer.write(variant, row)


def write_dropout(directory):
    row = {"shares": [97, 1, 1, 1], "steps": 7, "numbers": [970, 10, 10, 10], "limits": ["a quota"], "mean": 1.0}
    row |= {"devices": ["a", "b", "c", "d"], "cpu_seconds": [SPREAD, *[summarise([0.015])] * 3]}
    for dim in ("rows", "columns"):
        Writer("dropout", directory).write(dim, {**row, "peak_bytes": [97 * 10**6, 10**6, 10**6, 10**6]})


def write_planner(directory):
    writer = Writer("planner", directory)
    row = {"network": "vgg11", "batch_size": 256, "fractions": [1.0, 0.33], "repeats": 3, "limits": ["a quota"]}
    row |= {"calibrate_seconds": 20.0, "plan_seconds": 2.0}
    turns = {
        "alone, a": [3.0, 3.3, 3.0],
        "alone, b": [6.0] * 3,
        "batch": [2.5] * 3,
        "filters": [4.0] * 3,
        "plan": [2.0] * 3,
    }
    for way, seconds in turns.items():
        values = {"way": way, "turns": seconds, "seconds": summarise(seconds), "is_taken": way == "plan"}
        writer.write(f"vgg11/1.0,0.33/{way}", {**row, **values, "predicted_seconds": 1.1 * seconds[0]})
    held = {"part": "memory", "steps": 8, "workers": [0, 1], "peak_bytes": [10**8, 5 * 10**7]}
    held |= {"predicted_bytes": [1.05e8, 6e7], "runtime_bytes": [2e7, 2e7]}
    writer.write("memory/vgg11/1.0,0.33", {**row, **held})
    tried = {"part": "every way", "ways": {"conv1 batch": [1.0, 1.1], "conv1 outputs": [2.0, 3.0]}}
    tried |= {"turns": {"conv1 batch": [1.0] * 3, "plan": [0.8] * 3}, "predicted": {"conv1 batch": 1.0, "plan": 0.9}}
    writer.write("every way/vgg11/1.0,0.33", {**row, **tried})


def learning_row(**values):
    row = {"model": "paper_cifar", "dataset": "cifar10", "batch_size": 200, "optimizer": "adafactor", "steps": 3}
    row |= {"learning_rate_schedule": "constant", "seed": 1, "parameters": 5, "test_images": 100, "tested_images": 10}
    row |= {"losses": [2.3, 2.2, 2.1], "accuracy": [[2, 0.1], [3, 0.2]], "final_accuracy": 0.25}
    return {**row, **values}


def write_learning_curve(directory):
    writer = Writer("learning_curve", directory)
    for variant, shares, devices in (("70,25,5", "70,25,5", 3), ("one device", None, 1)):
        devices = ["cpu:0"] * devices
        writer.write(variant, learning_row(shares=shares, devices=devices, sizes={"a of 6": [4, 1, 1]}))


def write_cluster_curve(directory):
    writer = Writer("cluster_curve", directory)
    common = {"notes": ["worker 0 at a:1: 1 cores on core 0, limited by a quota"], "final_images": 50}
    common |= {"wall_seconds_per_step": SPREAD, "float64_model": "lenet", "float64_dataset": "mnist5k"}
    for variant, cores, sizes, last, float64 in (
        ("filters 2,1", "1.0,0.5", [4, 2], 2.1042, 1.0 + 1e-13),
        ("even", "1.0,0.5", [3, 3], 2.1, 1.0),
        ("one device", "1.0", [6], 2.1, 1.0),
    ):
        row = {**common, "local_cluster": cores, "sizes": {"a of 6": sizes, "b of 6": sizes}}
        row |= {"learning_rate": 0.01, "losses": [2.3, 2.2, last], "float64_losses": [2.0, float64]}
        writer.write(variant, learning_row(**row))


def write_accounting(directory):
    writer = Writer("accounting", directory)
    for name, kind in (("mtf_hetero", "ReluGrad"), ("stock mtf", "Greater")):
        row = {"lowering": name, "network": "vgg16", "batch_size": 64, "repeats": 5, "operations": 1200}
        writer.write(f"vgg16/64/{name}", {**row, "kinds": {"Conv2D": SPREAD, kind: SPREAD, "Arg": {"median": 1e-6}}})


def write_heterogeneous(directory):
    writer = Writer("heterogeneous", directory)
    common = {"network": "vgg11", "fractions": [1.0, 0.33], "batch_size": 256, "repeats": 5, "steps": 1, "seed": 1}
    common |= {"limits": ["a quota", "a quota"], "wall_seconds_per_step": SPREAD, "speedup": SPREAD, "loss_error": 1e-7}
    common |= {"efficiency": SPREAD}
    measured = {"reason": "split", "seconds": 60.0, "shares": [80.0, 20.0], "predicted_seconds": 1.4}
    ways = (
        "device 0 alone",
        "device 1 alone",
        "batch, even",
        "batch, by FLOP/s",
        "batch, measured",
        "filters, measured",
    )
    for way in (*ways, "filters, best of a grid", "PyTorch DDP, even"):
        row = {**common, "way": way, "layout": way.partition(",")[0], "sizes": {"batch": [200, 56]}}
        if way.endswith(", measured"):
            used = {"computing": 1.0, "receiving": 0.1, "waiting": 0.2}
            row |= {"measured": measured, "usage": {"worker:0/cpu:0": used}}
        if way.startswith("filters"):
            row |= {"sent_bytes": 80_000_000, "busiest_link_bytes": 60_000_000, "busiest_link_messages": 30}
        if way.startswith("PyTorch"):
            row["failed"] = "no torch"
        writer.write(f"vgg11/1.0,0.33/256/{way}", row)


def write_splitbrain(directory):
    writer = Writer("splitbrain", directory)
    common = {"network": "vgg11_4096", "fractions": [0.8, 0.8], "batch_size": 64, "repeats": 3, "steps": 1, "seed": 1}
    common |= {"limits": ["a quota"], "wall_seconds_per_step": SPREAD, "loss_error": 1e-7, "sent_bytes": 5_000_000}
    common |= {"received_bytes": 5_000_000, "link": {"latency_seconds": 1e-3, "bytes_per_second": 1e9}}
    for way, weights in (("data parallel", 100_000_000), ("hybrid 1 x 2", 60_000_000)):
        row = {"weight_bytes": [weights] * 2, "peak_bytes": [3 * weights] * 2, "estimated_bytes": [2.7 * weights] * 2}
        writer.write(f"vgg11_4096/2/{way}", {**common, **row, "way": way})
    modelled = {**common, "fractions": [1.0] * 8, "batch_size": 512, "modelled": True, "alone_seconds": 1.0}
    modelled |= {"busiest_worker_bytes": 500_000_000, "busiest_link_messages": 500}
    writer.write("vgg11_4096/8/data parallel, modelled", {**modelled, "way": "data parallel"})


def write_spatial(directory):
    writer = Writer("spatial", directory)
    common = {"network": "conv", "fractions": [1.0, 0.5], "repeats": 5, "steps": 1, "seed": 1, "limits": ["a quota"]}
    link = {"latency_seconds": 1e-3, "bytes_per_second": 1e9}
    timed = {**common, "link": link, "loss_error": 1e-7, "extents": [64] * 3}
    timed |= {"usage": [{"computing": 1.0, "receiving": 0.1, "waiting": 0.2}] * 2, "received_bytes": 4_000_000}
    timed |= {"overlap": [{"halo_seconds": 0.2, "convolution_seconds": 0.9, "both_seconds": 0.05}] * 2}
    own, none = {"halo_bytes": 1_000_000}, {"halo_bytes": 0}
    for part, way, workers, seconds in (
        ("conv", "alone", [0], 1.5),
        ("conv", "even", [0, 1], 1.4),
        ("conv", "2:1", [0, 1], 1.0),
        ("strong", "1", [0], 1.5),
        ("strong", "2", [0, 1], 0.8),
    ):
        setting = {"part": part, "setting": f"{part}/W=64/1.0,0.5", "way": way, "workers": workers}
        halos = [own] * 2 if len(workers) > 1 else [none]
        row = {**timed, **setting, "sizes": {"depth": [43, 21]} if way == "2:1" else {}, "exchanged": halos}
        row |= {"wall_seconds_per_step": summarise([seconds, seconds + 0.1, seconds + 0.2])}
        row |= {"predicted_seconds": seconds, "predicted_computing_seconds": 0.9 * seconds}
        row |= {"predicted_layer_seconds": {"conv1": 0.8 * seconds}, "predicted_bytes": 4_000_000}
        row |= {"sent_bytes": 4_000_000 if len(workers) > 1 else 4}
        writer.write(f"{setting['setting']}/{way}", row)
    for count, peak in ((1, 415_000_000), (2, 240_000_000)):
        row = {**common, "part": "memory", "edge": 64, "fractions": [1.0] * count, "split": [64 // count] * count}
        row |= {"exchanged": [{"halo_bytes": 15_000_000 * (count > 1)}] * count, "whole_bytes": [15_000_000] * count}
        row |= {name: [peak] * count for name in ("peak_bytes", "estimated_bytes")}
        writer.write(f"memory/W=64/{count}", row)
    for edge, trained in ((64, True), (128, False)):
        row = {**common, "part": "limit", "edge": edge, "memory_limit_bytes": 5e8, "trained": trained}
        row |= {"peak_bytes": [2e8, 3e8]} if trained else {"error": "RuntimeError: lost", "exit_codes": [None, -9]}
        writer.write(f"limit/0.5GB/2/W={edge}", row)
    row = {**common, "part": "input", "edge": 64, "split": [43, 21], "plane_bytes": 1000, "volumes": 10}
    row |= {"read_bytes": [[431_000, 212_000], [900, 900], [900, 900]], "read_bytes_without_input": [1000, 2000]}
    writer.write("input/1.0,0.5", {**row, "wait_seconds": [[1e-3, 2e-3]] * 3})
    row = {**common, "part": "projected", "modelled": True, "edge": 512, "count": 8, "measured_edge": 64, "link": link}
    row |= {"flops_per_second": 3e10, "predicted_computing_seconds": 4.0, "predicted_bytes": 2**30}
    for groups, seconds in ((1, 5.0), (256, 10.0)):
        variant = f"projected/W=512/8 x {groups}, modelled"
        writer.write(variant, {**row, "groups": groups, "predicted_seconds": seconds})


def volume_row(**values):
    row = {"model": "cosmoflow_small", "batch_size": 8, "steps": 3, "seed": 1, "learning_rate": 0.001, "parameters": 5}
    row |= {"train_volumes": 600, "test_volumes": 3, "sizes": {"depth of 6": [4, 2]}, "losses": [1.0, 0.9, 0.8]}
    row |= {"tests": [[2, {"loss": 0.9}], [3, {"loss": 0.8}]], "wall_seconds_per_step": SPREAD}
    return {**row, **values}


def write_cosmology(directory):
    true = [[0.25, 0.8], [0.3, 0.9], [0.35, 0.85]]
    told = [[0.26, 0.8], [0.3, 0.9], [0.34, 0.85]]
    row = {"set": {"size": 64, "cell": 2.0}, "targets": ["omega_m", "sigma_8"], "train_mean": [0.3, 0.85]}
    row |= {"true": true, "told": told, "ridge": true}
    Writer("cosmology", directory).write("cosmoflow_small", volume_row(**row))


def write_segmentation(directory):
    row = {"set": {"scan": "colin27", "edge": 32}, "classes": ["other", "brain"]}
    row |= {"thresholds": [90, 140], "dice": {"network": [0.9, 0.8], "thresholds": [0.9, 0.6]}}
    row |= {"slice": {name: pack(np.eye(4)) for name in ("image", "true", "network", "thresholds")}}
    Writer("segmentation", directory).write("unet3d_small", volume_row(**row))


def write_faults(directory):
    writer = Writer("faults", directory)
    row = {"part": "kills", "kills": 20, "resumed": 20, "from_newest": 20, "from_zero": 0, "steps": 9, "failures": []}
    hits = ["before rename model.ckpt-N.index", "while saving", "before the first step"]
    writer.write("kills/1", {**row, "hits": hits, "error": 1e-16})
    lost = {"from_newest": 19, "from_zero": 1, "failures": ["begun at step 0, not 9"]}
    writer.write("kills/2", {**row, **lost, "hits": hits[:1] * 2, "error": 3e-16})
    row = {"part": "damage", "file": "model.ckpt-9.index", "exit_code": 0, "begun": 6, "failures": []}
    line = {"line": "model.ckpt-9 | damaged: passed over", "passed_over": 1}
    for damage in ("truncated", "emptied"):
        writer.write(f"damage/model.ckpt-9.index {damage}", {**row, **line, "damage": damage})
    row = {"part": "faults", "exit_code": 2, "seconds": 0.5, "kept": "steps 3, 6", "failures": []}
    row |= {"done": "`--speed=3`", "line": "error: Unknown flag"}
    writer.write("faults/flags/an unknown flag", row)
    hung = {"done": "frozen", "exit_code": None, "line": "", "kept": "", "failures": ["it did not end"]}
    writer.write("faults/workers/frozen", {**row, **hung})
    writer.write("faults/disk/full", {**row, "done": "a full disk", "skipped": "only root can mount"})


def write_elastic(directory):
    writer = Writer("elastic", directory)
    row = {"network": "vgg11", "batch_size": 128, "steps": 12}
    event = {"step": 6, "why": "worker:1/cpu:0 is 3.00x as slow", "seconds_paused": 2.5, "repeated_steps": 0}
    event |= {"predicted_gain": 0.4, "sizes": {"batch": [96, 32]}}
    phases = {"cut": 4, "restored": 8}
    settled = {"before": summarise([1.0]), "cut": summarise([1.6]), "restored": summarise([1.1])}
    seconds = [0.0, 1.0, 1.0, 1.0, 3.0, 3.0, 1.6, 1.6, 1.6, 1.1, 1.1, 1.1]
    changed = {**row, "phases": phases, "step_seconds": seconds}
    writer.write("vgg11/auto", {**changed, "way": "auto", "events": [event], "settled_seconds": settled})
    static = {"before": summarise([1.0]), "cut": summarise([3.0])}
    writer.write("vgg11/static", {**changed, "way": "static", "events": [], "settled_seconds": static})
    fresh = {"way": "fresh", "phases": {}, "events": [], "settled_seconds": {"cut": summarise([1.5])}}
    writer.write("vgg11/fresh", {**row, **fresh, "step_seconds": [0.0, 1.5]})
    killed = {"seconds": 8.5, "detected": 0.5, "repeated": 2, "source": "memory", "step_seconds": [0.0, 1.5, 1.7]}
    writer.write("kill/batch", {**row, **killed, "layout": "batch"})
    writer.write("stop/batch", {**row, **killed, "layout": "batch", "seconds": 20.5, "detected": 16.5})
    writer.write("torchrun/defaults", {**row, **killed, "seconds": 40.5, "repeated": 5, "source": "checkpoint"})
    writer.write("torchrun/short waits", {**row, "failed": "no torch"})
    for way, seconds in (("auto", 0.0202), ("off", 0.02)):
        values = {"watched": way, "changes": 0, "cpu_seconds_per_step": summarise([seconds]), "repeats": 2}
        writer.write(f"steady/{way}", {**row, **values, "network": "lenet", "steps": 2000})
    for way, interval, seconds in (("saved", 10.0, 1.03), ("unsaved", 1e6, 1.0)):
        values = {"saves": way, "interval": interval, "mean_seconds": summarise([seconds]), "repeats": 2, "steps": 150}
        writer.write(f"saving/{way}", {**row, **values})


def write_sequences(directory):
    writer = Writer("sequences", directory)
    why = (
        "worker 1 (b:2) was lost, and worker c:3 joined",
        "worker 1 (b:2) answers again",
        "cpu:0 is 2x as slow as at",
        "worker 0 (a:2) was removed",
    )
    changes = [{"step": 20, "why": text, "repeated_steps": 0, "seconds_paused": 1.5} for text in why]
    row = {"layout": "batch", "devices": ["worker:0/cpu:0", "worker:1/cpu:0"], "seconds": 31.5, "difference": 4.4e-15}
    row |= {"happenings": ["12 kill 1", "12+1.5 s join 2"], "changes": changes, "repeated": 3}
    writer.write("sequence/1", row)
    writer.write("sequence/2", {**row, "changes": [], "repeated": 0, "difference": None, "failed": "it did not end"})


def write_keras_models(directory):
    writer = Writer("keras_models", directory)
    settings = {"model": "Small", "steps": 3, "shares": [4.0, 2.0, 1.0], "layers": 9, "weights": 2_500_000}
    differences = {"output": 2e-7, "gradient": 3e-6, "weight": 4e-9}
    writer.write("Small/one device", {**settings, "layout": "one device", **differences, "float32": 5e-8})
    writer.write("Small/batch", {**settings, "layout": "batch", **differences, "gradient": 4e-6})
    writer.write("Large/batch", {**settings, "model": "Large", "layout": "batch", **differences, "output": 1.0})
    again = {"output": 0.5, "gradient": 2e-6, "weight": 4e-9}
    writer.write("Large/Keras again", {**settings, "model": "Large", "layout": "Keras again", **again})
    writer.write("Other/batch", {**settings, "model": "Other", "layout": "batch", "failed": "no memory"})


def write_any_step(directory):
    writer = Writer("any_step", directory)
    row = {"kind": "vision", "source": "an example", "dtype": "float64", "tolerance": 1e-9, "reason": "", "steps": 5}
    row |= {"shares": [4.0, 2.0, 1.0], "own": 2e-16, "operations": 164, "seconds": 3.0}
    same = {"results": 1e-16, "variables": 3e-16, "replicated": 0.009, "replicated_examples": 0.0}
    same["largest_replicated"] = []
    layouts = {"one device": same, "batch": same, "weights": {"not_split": "no weight"}, "planned": same}
    writer.write("vision/small", {**row, "program": "small", "layouts": layouts})
    away = {**same, "results": 1e-3, "replicated_examples": 0.5, "largest_replicated": ["Lu model.py:3 50.0%"]}
    single = {"dtype": "float32", "tolerance": 1e-5, "reason": "Odd has no float64"}
    writer.write("vision/odd", {**row, **single, "program": "odd", "layouts": {"one device": same, "batch": away}})
    refused = {"program": "lookup", "refused": "operation Lookup 'x' (model.py:7) is not followed", "layouts": {}}
    writer.write("vision/lookup", {**row, **refused})
    writer.write("vision/broken", {**row, "program": "broken", "failed": "no memory"})


def write_keras_fit(directory):
    writer = Writer("keras_fit", directory)
    settings = {"network": "Small", "batch_size": 8, "pixels": 64, "repeats": 3, "fractions": None}
    for setting in ("one device", "workers"):
        for way, ratio in (("Keras", 1.0), ("mtf_hetero", 0.8)):
            names = [f"{clock}_{kind}" for clock in ("wall", "cpu") for kind in ("seconds_per_step", "ratio")]
            values = dict.fromkeys(names, summarise([ratio]))
            row = {**settings, "setting": setting, "way": way, **values}
            writer.write(f"Small/{setting}/{way}", {**row, "fractions": [1.0, 0.33] if setting == "workers" else None})
    first = {**settings, "setting": "first step", "layers": 6, "layout": "batch", "devices": ["cpu:0"]}
    for way, ratio in (("Keras", 1.0), ("mtf_hetero, batch over three", 1.2)):
        values = {f"{clock}_{kind}": summarise([ratio]) for clock in ("wall", "cpu") for kind in ("seconds", "ratio")}
        writer.write(f"Small/first step/{way}", {**first, "way": way, **values})


WRITE = {
    "any_step": write_any_step,
    "keras_fit": write_keras_fit,
    "one_device": write_one_device,
    "accounting": write_accounting,
    "lowering": write_lowering,
    "dropout": write_dropout,
    "planner": write_planner,
    "learning_curve": write_learning_curve,
    "cluster_curve": write_cluster_curve,
    "heterogeneous": write_heterogeneous,
    "splitbrain": write_splitbrain,
    "cosmology": write_cosmology,
    "segmentation": write_segmentation,
    "spatial": write_spatial,
    "elastic": write_elastic,
    "sequences": write_sequences,
    "faults": write_faults,
    "keras_models": write_keras_models,
}
