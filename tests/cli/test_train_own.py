"""Training on a user's own images: on any layout as on one device, resumed, tested, predicted and exported."""

import json
import re
import shutil

import numpy as np
import pytest
from own_sets import CLASSES, draw, draw_folders
from training_runs import CPUS, ONE, call, check_mistake, check_variables, read_losses, read_test, run, variables

from mtf_hetero.cli.after import evaluate, export, predict
from mtf_hetero.cli.train import config_file

pytestmark = pytest.mark.xdist_group("train own")  # one training
SMALL = ONE | {"batch_size": 6, "train_epochs": 4, "max_steps": 8, "summary_steps": 1, "busy_steps": 0}
UNEVEN = {"devices": CPUS, "layout": "batch", "list_speed": "3,2,1"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """21 training and 3 test images of three classes."""
    return draw_folders(tmp_path_factory.mktemp("own") / "photos", 24, (16, 16), suffix=".jpg")


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    """The directory of a run on one device."""
    directory = tmp_path_factory.mktemp("trained") / "run"
    assert run(**SMALL, dataset=photos, augment=True, model_dir=directory) == 0
    return directory


def assert_same_training(one, two):
    assert read_losses(one).keys() == set(range(1, 9))
    assert read_losses(two) == pytest.approx(read_losses(one), rel=2e-5)
    check_variables(two, variables(one), rtol=1e-3, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("layout", ["batch", "filters"])  # each worker reads its own images, or all of them
def test_workers_train_as_one_device(layout, photos, trained, tmp_path):
    place = {"layout": layout, "devices": "worker:0/cpu:0,worker:1/cpu:0", "list_speed": "2,1"}
    place |= {"local_cluster": "1.0,0.5"}
    assert run(**SMALL | place, dataset=photos, augment=True, model_dir=tmp_path) == 0
    assert_same_training(trained, tmp_path)


@pytest.mark.full
def test_a_run_goes_on_at_its_batch_with_its_own_numbers(photos, trained, tmp_path, capfd):
    moved = shutil.copytree(photos, tmp_path / "photos")
    first = SMALL | {"dataset": moved, "augment": True, "model_dir": tmp_path / "run"}
    assert run(**first | {"max_steps": 3}) == 0
    assert run(**first | UNEVEN) == 0
    out = capfd.readouterr().out
    assert "photos: 21 training and 3 test images of 16 x 16 x 3, 3 classes: cat, dog, owl\n" in out
    assert "warning" not in out
    assert_same_training(trained, tmp_path / "run")
    draw(moved / "cat" / "new.jpg", (16, 16))
    before = json.loads((tmp_path / "run" / "network.json").read_text())["images"]
    assert run(**first | {"max_steps": 9}) == 0
    note = f"warning: {moved} has changed since this run began with 21 training and 3 test images; training continues"
    assert note in capfd.readouterr().out
    after = json.loads((tmp_path / "run" / "network.json").read_text())["images"]
    assert (after["mean"], after["deviation"]) == (before["mean"], before["deviation"])
    assert after["digest"] != before["digest"]
    draw(moved / "bee" / "new.jpg", (16, 16))
    assert run(**first) == 2
    assert "bee/new.jpg is of the class 'bee', which the trained network does not know (cat, dog, owl)" in (
        capfd.readouterr().err
    )


def test_what_a_run_leaves_is_enough_to_test_and_to_predict(photos, trained, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_file.load(str(trained / "config.yaml"))["dataset"] == str(photos)
    assert call(evaluate, model_dir=trained) == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["examples"], result["dataset"]) == (3, str(photos))
    assert result["metrics"]["loss"] == pytest.approx(read_test(trained)["loss"], rel=1e-5)
    assert call(predict, model_dir=trained, output="p.jsonl") == 0
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert np.mean([row["class_name"] in row["file"] for row in rows]) == pytest.approx(result["metrics"]["accuracy"])
    assert all(row["class_name"] == CLASSES[row["class"]] for row in rows)
    assert predict.main([f"--model_dir={trained}", "--input", *(row["file"] for row in rows)], "") == 0
    out = capfd.readouterr().out.splitlines()[1:]
    expected = [f"{row['file']}: {row['class_name']} ({max(row['probabilities']):.1%})" for row in rows]
    assert out == expected


def test_photos_of_any_size_are_predicted(trained, tmp_path, capfd):
    for name, size, mode in (("b.PNG", (50, 20), "RGBA"), ("a.jpeg", (16, 16), "L"), ("c.txt.png", (9, 30), "P")):
        draw(tmp_path / "new" / name, size, mode=mode)
    (tmp_path / "new" / "notes.txt").write_text("skipped")
    draw(tmp_path / "new" / "below" / "d.png")
    inputs = [f"{tmp_path}/new", f"{tmp_path}/new/*.png", f"{tmp_path}/new/a.jpeg"]
    options = [f"--model_dir={trained}", f"--output={tmp_path}/p.npz", "--keys=class_name,file,class"]
    assert predict.main([*options, "--input", *inputs], "") == 0
    assert capfd.readouterr().out == f"class_name, file, class of 6 images: {tmp_path}/p.npz\n"
    with np.load(tmp_path / "p.npz") as arrays:
        names = [path.rpartition("/")[2] for path in arrays["file"]]
        assert names == ["a.jpeg", "b.PNG", "c.txt.png", "d.png", "c.txt.png", "a.jpeg"]
        assert arrays["class_name"].tolist() == [CLASSES[number] for number in arrays["class"]]
        assert arrays["class"][0] == arrays["class"][5] and arrays["class"][2] == arrays["class"][4]


@pytest.mark.full
def test_without_the_images(photos, trained, tmp_path, capfd):
    shutil.copytree(photos, tmp_path / "photos")
    assert run(**SMALL, dataset=tmp_path / "photos", image_size="12,20", model_dir=tmp_path / "run") == 0
    assert call(evaluate, model_dir=tmp_path / "run") == 0
    assert config_file.load(str(tmp_path / "run" / "config.yaml"))["image_size"] == ("12", "20")
    shutil.rmtree(tmp_path / "photos")
    draw(tmp_path / "a.png")
    assert call(export, model_dir=tmp_path / "run", output=tmp_path / "served") == 0
    assert call(predict, model_dir=tmp_path / "run", input=tmp_path / "a.png") == 0
    capfd.readouterr()
    assert call(evaluate, model_dir=tmp_path / "run") == 2
    assert f"--dataset is '{tmp_path}/photos', and {tmp_path}/photos does not exist" in capfd.readouterr().err


@pytest.mark.full
def test_other_images_are_tested_by_the_numbers_of_the_run(photos, trained, tmp_path, capfd):
    for path in sorted(photos.rglob("*.jpg")):
        other = tmp_path / "dark" / path.relative_to(photos)
        other.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, other)
    assert call(evaluate, model_dir=trained) == call(evaluate, model_dir=trained, dataset=tmp_path / "dark") == 0
    first, second = (json.loads(text + "}\n") for text in capfd.readouterr().out.split("\n}\n")[:2])
    assert first["metrics"] == second["metrics"]
    draw(tmp_path / "dark" / "fox" / "a.jpg", (16, 16))
    assert call(evaluate, model_dir=trained, dataset=tmp_path / "dark") == 2
    assert "fox/a.jpg is of the class 'fox', which the trained network does not know" in capfd.readouterr().err


def test_a_run_of_another_data_set_is_not_resumed(photos, trained, tmp_path, capfd):
    other = draw_folders(tmp_path / "two", 24, (16, 16), classes=CLASSES[:2])
    assert run(**SMALL, dataset=other, model_dir=trained) == 2
    assert re.fullmatch(
        f"error: --dataset is '{other}', but --model_dir holds {trained}/model.ckpt-8, which was trained on "
        rf"'{photos}': variable '\S+' has shape .* here and .* there; choose another directory, or that data set\n",
        capfd.readouterr().err,
    )


def test_mistakes_give_one_line_and_exit_code_2(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw_folders(tmp_path / "photos", 15, (16, 16))
    draw_folders(tmp_path / "tiny", 15, (8, 8))
    for values, message in [
        ({"dataset": "photoz"}, "dataset 'photoz' is neither built in (mnist5k) nor prepared in"),
        ({"dataset": "./photoz"}, f"--dataset is './photoz', and {tmp_path}/photoz does not exist; name a directory"),
        ({"dataset": "tiny"}, "layer 'conv2' convolves 4 x 4 pixels with a 5 x 5 kernel; give larger images"),
        ({"dataset": "photos", "batch_size": 20}, "--batch_size is 20, but photos has 12 training images"),
        ({"dataset": "photos", "model": "cosmoflow_small"}, "photos/manifest.json cannot be read"),
        ({"dataset": "photos", "image_size": "16,x"}, "--image_size is '16,x'; write 64, or height and width, such as"),
        ({"dataset": "photos", "image_size": "0"}, "--image_size is '0'; write 64"),
        ({"image_size": "16"}, "--image_size is 16,16, but the images of 'mnist5k' already have one size; remove it"),
    ]:
        check_mistake(capfd, message, **SMALL | {"model_dir": tmp_path / "run", "data_dir": tmp_path} | values)
    assert not (tmp_path / "run").exists()
