"""The training binary's one line about each mistake in its flags, and exit code 2."""

import pytest
from training_runs import CPUS, check_mistake

ON_THREE = [  # devices
    ({"model": "vgg"}, "--model is 'vgg'; it must be one of alexnet, cosmoflow, cosmoflow_bn, cosmoflow_small, lenet"),
    ({"layout": "diagonal"}, "--layout is 'diagonal'; it must be one of batch, even, filters"),
    ({"dataset": "mnist60k"}, "neither built in (mnist5k) nor prepared in"),
    ({"dataset": "cifar10", "data_dir": "/no/such/directory"}, "prepare it with: mtf-hetero data prepare cifar10"),
    ({"optimizer": "lion"}, "--optimizer is 'lion'; it must be one of adafactor, adam, momentum, sgd"),
    ({"devices": "cpu:0,cpu:1,gpu:99"}, "device 'gpu:99' does not exist: TensorFlow finds"),
    ({"devices": "cpu:0,cpu:1", "mesh_shape": "all:3"}, "mesh all:3 has 3 processors, but there are 2 devices"),
    (
        {"devices": "worker:0/cpu:0", "workers": "a:1,b:2"},
        "--workers has worker 1, b:2, of which --devices names no device; name one, such as worker:1/cpu:0, or leave",
    ),
    ({"devices": "cpu:0", "local_cluster": "0.5"}, "--local_cluster has worker 0, 0.5, of which --devices names no"),
    ({"max_steps": 641}, "--max_steps is 641, but there are 640 steps in --train_epochs=4 of 4000 images in batches"),
    ({"max_steps": 641}, "give --train_epochs=5"),
    ({"trace_steps": "3,640"}, "--trace_steps names 640, but the training has 640 steps, which count from 0: the last"),
    ({"layout": "spatial", "mesh_shape": "depth:3"}, "the images of mnist5k have no depth to split; name the axis"),
    ({"list_speed": "70,30,fast"}, "'fast' is not a number"),
    ({"measure_seconds": 0, "list_speed": "auto"}, "--measure_seconds is 0.0; it must be a positive number"),
    ({"dense_rounds": True}, "--dense_rounds is True, which only --layout=hybrid uses"),
    ({"dense_shares": "1,2,big", "layout": "hybrid"}, "--dense_shares is '1,2,big': 'big' is not a number"),
    ({"dense_shares": "1,0,2", "layout": "hybrid"}, "[1.0, 0.0, 2.0]"),
    ({"dense_shares": "1,2", "layout": "hybrid"}, "2 numbers for the 3 processors"),
    ({"layout": "hybrid", "batch_size": 2, "mesh_shape": "data:1;model:3"}, "2 has no two factors"),
    ({"layout": "hybrid", "mesh_shape": "a:3;b:1;c:1"}, "hybrid parallelism needs one axis or two"),
    ({"mesh_shape": "rows:3;cols:1", "layout": "conv1/filters:depth"}, "axis 'depth', which the mesh"),
    ({"mesh_shape": "rows:1;cols:3"}, "mesh axis 'cols' is used by no rule of layout 'filters'"),
    ({"layout": "conv1/filter:all"}, "; the nearest is 'conv1/filters'"),
    ({"layout": "conv1/channels:all"}, "'conv1/channels' cannot be split over the 3 processors of mesh axis 'all'"),
    ({"layout": "conv2/filters:all;conv2/channels:all"}, "'conv2/channels', 'conv2/filters', and the layout splits"),
    ({"batch_size": 5000}, "--batch_size is 5000, but mnist5k has 4000 training images"),
    ({"batch_size": 2, "layout": "batch"}, "'batch' cannot be split over the 3 processors"),
    ({"learning_rate_schedule": "step"}, "--learning_rate_schedule is 'step'; it must be one of constant, cosine"),
    ({"recompute": "conv1"}, "--recompute is given, which --model=lenet does not know; remove it"),
    ({"trace_steps": "3,last"}, "--trace_steps is '3,last'; write steps"),
    ({"trace_steps": "-1"}, "--trace_steps is -1; steps count from 0"),
    ({"model_dir": __file__}, "which is a file; name a directory"),
    ({"model_dir": "/proc/no/such"}, "--model_dir is '/proc/no/such', which cannot be made"),
    ({"eval_every": "often"}, "--eval_every is 'often'; write a number of steps, such as 500, or of epochs"),
    ({"patience": 2}, "--patience is 2 without --eval_every, which tests; give both"),
    ({"eval_every": "641"}, "--eval_every is '641', but the training ends before, after step 640; give a smaller"),
    ({"eval_every": "5epochs"}, "--eval_every is '5epochs', but the training ends before, after step 640"),
    ({"wait_for_workers": "soon"}, "--wait_for_workers is 'soon'; write seconds, such as 60, or forever"),
    ({"wait_for_workers": "-1"}, "--wait_for_workers is '-1'; write seconds, such as 60, or forever"),
    ({"min_workers": 0}, "--min_workers is 0; it must be a whole number, 1 or more"),
]
OF_WORKERS = [
    ({"workers": "127.0.0.1:1"}, "worker 0 (127.0.0.1:1)"),
    ({"workers": "here"}, "worker address 'here' is not host:port"),
    ({"local_cluster": "1.0,fast"}, "--local_cluster is '1.0,fast': 'fast' is not a number of cores"),
    ({"local_cluster": "99"}, "--local_cluster asks for 99 cores for worker 0"),
    ({"memory_limit": "16,8"}, "which only --layout=auto and --list_speed=auto use"),
    ({"list_speed": "auto", "memory_limit": "16,8", "devices": "cpu:0"}, "gigabytes of each of the 1 devices"),
    ({"noaugment": "x"}, "--noaugment=x does not take an argument"),
    ({"wire_dtype": "int8"}, "--wire_dtype is 'int8'; it must be one of bfloat16, float16"),
    ({"devices": "worker:0/cpu:0"}, "device 'worker:0/cpu:0'"),
    ({"workers": "@nowhere.txt"}, "--workers=@nowhere.txt: no such file or directory; write one host:port per line"),
    ({"workers": ":2300,b:2222"}, "--workers has ':2300' beside others; give addresses, one file, or one port"),
]
MISTAKES = [*(({"devices": CPUS} | values, message) for values, message in ON_THREE), *OF_WORKERS]


@pytest.mark.parametrize(("values", "message"), MISTAKES, ids=[str(values) for values, _ in ON_THREE + OF_WORKERS])
def test_a_mistake_gives_one_line_and_exit_code_2(values, message, capfd):
    check_mistake(capfd, message, **{"model": "lenet"} | values)
