"""Metadata of exports for package managers: fields, patterns, and that named files exist."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from smelt.api.artifact import Artifact
from smelt.api.options import Options
from smelt.codegen.emit.export import Package
from tests.support.export_tools import export, project
from tests.support.projects import digits


def properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize(
    ("target", "architectures"),
    [("host", {"*"}), ("rv32imac", {"esp32"}), ("cortex-m4", {"samd", "stm32", "mbed_nano"})],
)
def test_arduino_metadata_follows_the_specification(target: str, architectures: set[str]) -> None:
    """Check the fields and the layout of Arduino's library specification, revision 2.2."""
    exported = project(digits(Options(target=target)), "arduino")
    fields = properties(exported.files["library.properties"])
    required = {"name", "version", "author", "maintainer", "sentence", "paragraph", "category"}
    assert required | {"url", "architectures"} <= fields.keys()
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,62}", fields["name"])
    assert fields["includes"] == "digits_int8_net.h"
    assert fields["category"] in CATEGORIES
    assert architectures <= set(fields["architectures"].split(","))
    keywords = exported.files["keywords.txt"].splitlines()[1:]
    for line in keywords:
        word, kind = line.split("\t")
        assert word in "".join(exported.files.values())
        assert kind in ("KEYWORD1", "KEYWORD2", "LITERAL1")
    sources = [path for path in exported.files if path.endswith((".c", ".h"))]
    assert sources
    assert all(path.startswith("src/") for path in sources)
    assert "examples/digits_int8/digits_int8.ino" in exported.files


CATEGORIES = {
    "Display",
    "Communication",
    "Signal Input/Output",
    "Sensors",
    "Device Control",
    "Timing",
    "Data Storage",
    "Data Processing",
    "Other",
}


def test_platformio_metadata_follows_the_specification() -> None:
    exported = project(digits(Options(target="cortex-m4")), "platformio")
    manifest = json.loads(exported.files["library.json"])
    assert manifest["name"] == "digits_int8"
    assert len(manifest["description"]) <= 255
    assert manifest["license"] == "MIT-0"
    assert manifest["build"]["flags"] == ["-O2", "-ffp-contract=off", "-fno-strict-aliasing"]
    (example,) = manifest["examples"]
    assert all(f"{example['base']}/{name}" in exported.files for name in example["files"])
    assert "nucleo_f446re" in exported.files["examples/digits_int8/platformio.ini"]
    helium = project(digits(Options(target="cortex-m55")), "platformio").files["library.json"]
    assert "-fno-tree-loop-vectorize" in json.loads(helium)["build"]["flags"]


MODULE_KEYS = {
    "name": str,
    "build": {
        "cmake": str,
        "kconfig": str,
        "cmake-ext": bool,
        "kconfig-ext": bool,
        "depends": list,
        "settings": dict,
    },
    "tests": list,
    "samples": list,
    "boards": list,
    "blobs": list,
}
"""Keys that Zephyr's schema of `zephyr/module.yml` allows, and their types."""


def allowed(found: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    for key, value in found.items():
        kind = schema[key]
        if isinstance(kind, dict):
            allowed(value, kind)
        else:
            assert isinstance(value, kind)


def test_zephyr_metadata_follows_the_schema() -> None:
    exported = project(digits(Options(target="cortex-m4")), "zephyr")
    module = yaml.safe_load(exported.files["zephyr/module.yml"])
    allowed(module, MODULE_KEYS)
    assert f"{module['build']['cmake']}/CMakeLists.txt".removeprefix("./") in exported.files
    assert module["build"]["kconfig"] in exported.files
    kconfig = exported.files["Kconfig"]
    (option,) = re.findall(r"^config (\w+)$", kconfig, re.MULTILINE)
    assert f"\nCONFIG_{option}=y\n" in exported.files["samples/digits_int8/prj.conf"]
    assert f"if(CONFIG_{option})" in exported.files["CMakeLists.txt"]
    assert "FPU" not in kconfig
    sample = yaml.safe_load(exported.files["samples/digits_int8/sample.yaml"])
    assert sample["sample"]["name"] == "digits_int8"
    floats = project(digits(model="digits_float32"), "zephyr").files["Kconfig"]
    assert "\timply FPU\n" in floats
    assert "\tselect REQUIRES_FULL_LIBC\n" in floats


def description(artifact: Artifact) -> ElementTree.Element:
    return ElementTree.fromstring(
        project(artifact, "cmsis-pack").files["Smelt.digits_int8.pdsc"].split("\n", 1)[1]
    )


def test_cmsis_pack_metadata_follows_the_schema() -> None:
    """Check order and patterns of Open-CMSIS-Pack's schema, and that every file exists."""
    exported = project(digits(Options(target="cortex-m4")), "cmsis-pack")
    root = description(digits(Options(target="cortex-m4")))
    required = {"vendor", "name", "description", "url", "releases", "conditions", "components"}
    assert required <= {child.tag for child in root}
    (release,) = root.iter("release")
    assert release.get("version") == "1.0.0"
    assert "date" not in release.attrib
    (component,) = root.iter("component")
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_+():/\- .]{0,31}", component.attrib["Csub"])
    conditions = {one.attrib["id"]: one for one in root.iter("condition")}
    used = {e.attrib["condition"] for e in root.iter() if "condition" in e.attrib}
    assert used == conditions.keys()
    files = [file.attrib["name"] for file in component.iter("file")]
    assert set(files) <= exported.files.keys()
    (data,) = exported.binaries["Smelt.digits_int8.1.0.0.pack"]
    with zipfile.ZipFile(io.BytesIO(data.tobytes())) as archive:
        assert archive.testzip() is None
        assert {*files, "Smelt.digits_int8.pdsc"} <= set(archive.namelist())
        for entry in archive.infolist():
            assert entry.date_time == (1980, 1, 1, 0, 0, 0)
            assert archive.read(entry).decode() == exported.files[entry.filename]


@pytest.mark.parametrize(
    ("target", "runs", "not_"),
    [
        ("cortex-m0", {"Cortex-M0", "Cortex-M0+", "Cortex-M4", "Cortex-M85"}, set[str]()),
        ("cortex-m4", {"Cortex-M4", "Cortex-M7", "Cortex-M33"}, {"Cortex-M3", "Cortex-M0+"}),
        ("host", set[str](), set[str]()),
    ],
)
def test_a_pack_names_the_cores_that_can_run_it(
    target: str, runs: set[str], not_: set[str]
) -> None:
    root = description(digits(Options(target=target)))
    cores = {e.attrib["Dcore"] for e in root.iter("accept") if "Dcore" in e.attrib}
    assert runs <= cores
    assert not cores & not_


def test_a_pack_requires_cmsis_nn() -> None:
    root = description(digits(Options(target="cortex-m4", backends=("cmsis_nn",))))
    (package,) = root.iterfind("requirements/packages/package")
    (required,) = (e for e in root.iter("require") if e.get("Cgroup") == "NN Lib")
    assert required.attrib["Cversion"] == package.attrib["version"] == "7.0.0"


def test_version_and_vendor_are_in_the_metadata(tmp_path: Path) -> None:
    package = Package("2.10.3", "Acme")
    export(digits(), "cmsis-pack", tmp_path / "pack", package)
    assert (tmp_path / "pack/Acme.digits_int8.2.10.3.pack").is_file()
    arduino = properties(project(digits(), "arduino", package).files["library.properties"])
    assert (arduino["version"], arduino["author"]) == ("2.10.3", "Acme")
    assert json.loads(project(digits(), "platformio", package).files["library.json"])[
        "version"
    ] == ("2.10.3")
