"""Names in C: whatever a network's title, its code compiles with all headers of every library."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from smelt.api.options import Options
from smelt.codegen.emit.export import Package, export_project, find_format, formats
from smelt.codegen.emit.names import LONGEST, c_name
from smelt.errors import ConfigError
from smelt.ir import Graph
from tests.backends.test_host import kernels_source
from tests.schedule.test_lengths import SUMMARY, parse
from tests.support.export_tools import need
from tests.support.graphs import compile_graph
from tests.support.projects import counter
from tests.support.shared import ROOT

HERE = ROOT / "tests/support"
TITLES = """
    pid clock mode timer stack key div ldiv lldiv x time string signal math index errno size int8
    uint32 intptr wchar float double float_ ptrdiff max_align sig fpos va off dev ino uid gid sem
    mqd id nlink sigset pthread socklen sa_family regex glob jmp_buf tm locale fenv main wire port
    smelt smelt_vulkan text test all aux class NULL EOF INPUT OUTPUT DEFAULT OK ERROR PI F B1 bit
    MIN M_PI linux unix inet net bt_mesh virtio sys_NET K StackType TaskHandle k_tid boolean
    """
"""Titles that are names of types, macros, functions or files in headers, without `_net`."""

HEADERS = """
    aio arpa/inet assert complex ctype dirent dlfcn errno fcntl fenv float fnmatch ftw getopt glob
    grp iconv inttypes iso646 langinfo libgen limits locale malloc math mqueue net/if netdb
    netinet/in netinet/tcp poll pthread pwd regex sched search semaphore setjmp signal spawn
    stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib string strings sys/ioctl sys/mman
    sys/resource sys/select sys/socket sys/stat sys/time sys/times sys/types sys/un sys/wait
    syslog termios threads time uchar ucontext unistd utime wchar wctype
    """
"""Headers of C and POSIX; each library has most of them."""

LIBRARIES = {
    "glibc": ("gcc",),
    "newlib": ("arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb"),
    "picolibc": (
        "riscv64-unknown-elf-gcc",
        *("-march=rv32imac_zicsr", "-mabi=ilp32", "--specs=picolibc.specs"),
    ),
}
"""Command of a compiler for each C library."""

ENVIRONMENTS = ("arduino", "freertos", "zephyr")
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wno-unused-function")


def graphs() -> Iterator[Graph]:
    """Yield networks that together have every kind of declaration: tensors, state, lengths."""
    yield counter()
    yield parse(SUMMARY)


@cache
def texts(title: str) -> dict[str, str]:
    """Return the C files of a network with state, and the header of one with lengths."""
    first, second = (compile_graph(g, Options(name=title)).project.files for g in graphs())
    name = c_name(title)
    files = {path: text for path, text in first.items() if path.startswith(name)}
    # Both headers have the same guard and names, so they must be compiled separately.
    return {**files, f"lengths/{name}.h": second[f"{name}.h"]}


def includes(library: str) -> list[str]:
    """Return a line to include each header of `HEADERS` that a library has and can compile."""
    return [line for line in _candidates() if _compiles(library, line)]


@cache
def _compiles(library: str, text: str) -> bool:
    command = [*LIBRARIES[library], "-std=gnu11", "-fsyntax-only", "-xc", "-"]
    return (
        subprocess.run(command, input=text.encode(), capture_output=True, check=False).returncode
        == 0
    )


def _candidates() -> list[str]:
    return [f"#include <{header}.h>\n" for header in HEADERS.split()]


def assert_compiles(command: tuple[str, ...], text: str, folder: Path) -> None:
    """Assert that a C file compiles without a warning."""
    (folder / "all.c").write_text(text)
    done = subprocess.run(
        [
            *command,
            *WARNINGS,
            "-fsyntax-only",
            f"-I{folder}",
            f"-I{HERE / 'environments'}",
            "all.c",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:3000]


def write(folder: Path) -> list[str]:
    """Write the files of all networks, and return lines that include their headers."""
    for title in TITLES.split():
        for path, text in texts(title).items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
    return [f'#include "{c_name(title)}.h"\n' for title in TITLES.split()]


@pytest.mark.parametrize("format_", ["", *formats()])
def test_the_longest_name_fits_every_file(format_: str, tmp_path: Path) -> None:
    title = "n" * (32 if format_ == "cmsis-pack" else LONGEST)  # a pack has its own limit
    artifact = compile_graph(next(graphs()), Options(name=title))
    project = artifact.project
    if format_:
        project = export_project(
            project, artifact.platform, "speed", find_format(format_), Package()
        )
    project.write(tmp_path / "out")
    with pytest.raises(ConfigError, match=f"has 201 characters.* at most {LONGEST} with --name"):
        c_name("n" * (LONGEST + 1))


@pytest.mark.parametrize("title", ["pid", "net", "a_net_", "knet", "kws_NET", "NET"])
def test_the_suffix_is_added_to_a_title(title: str) -> None:
    assert c_name(title) == f"{title}_net"


@pytest.mark.parametrize("title", ["kws_net", "a__net"])
def test_a_title_with_the_suffix_is_not_changed(title: str) -> None:
    assert c_name(title) == title


@pytest.mark.parametrize("title", ["_net", "_x", "__x", "_", "", "1", "a-b", "ä", "a\n", "a b"])
def test_invalid_names_are_refused(title: str) -> None:
    with pytest.raises(ConfigError, match="--name"):
        c_name(title)


@pytest.mark.quick(lengths=(True,), library=("glibc",))
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("lengths", [False, True])
def test_headers_compile_before_and_after_all_headers_of_a_library(
    library: str, lengths: bool, tmp_path: Path
) -> None:
    need(LIBRARIES[library][0])
    own = write(tmp_path)
    if lengths:
        own = [line.replace('"', '"lengths/', 1) for line in own]
    system = includes(library)
    assert len(system) > 25
    command = (*LIBRARIES[library], "-std=gnu11", "-DSMELT_STEP_CALLBACK")
    assert_compiles(command, "".join([*system, *own]), tmp_path)
    assert_compiles(command, "".join([*own, *system]), tmp_path)


@pytest.mark.parametrize("library", LIBRARIES)
def test_sources_compile_after_all_headers_of_a_library(library: str, tmp_path: Path) -> None:
    """Names in the network's C files, including locals, do not collide with the library's."""
    need(LIBRARIES[library][0])
    write(tmp_path)
    system = includes(library)
    for file in ("time_net.c", "time_net_kernels.c", "time_net_weights.c"):
        own = f'#include "{file}"\n'
        assert_compiles((*LIBRARIES[library], "-std=gnu11"), "".join([*system, own]), tmp_path)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_headers_compile_in_an_environment(environment: str, tmp_path: Path) -> None:
    """The environment's macros must not change members, parameters and constants."""
    need("gcc")
    own = write(tmp_path)
    around = f'#include "{environment}.h"\n'
    for lines in ([around, *own], [*own, around]):
        assert_compiles(("gcc", "-std=gnu11", "-DSMELT_STEP_CALLBACK"), "".join(lines), tmp_path)
    lengths = [line.replace('"', '"lengths/', 1) for line in own]
    assert_compiles(("gcc", "-std=gnu11"), "".join([around, *lengths]), tmp_path)


@pytest.mark.quick(environment=("freertos",))
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_kernels_compile_in_an_environment(environment: str, tmp_path: Path) -> None:
    """A network's C file and all kernels compile after the environment's macros."""
    need("gcc")
    write(tmp_path)
    (tmp_path / "kernels.c").write_text(kernels_source())
    for file in ("time_net.c", "kernels.c"):
        text = f'#include "{environment}.h"\n#include "{file}"\n'
        assert_compiles(("gcc", "-std=gnu11"), text, tmp_path)


FOLDERS = (
    *("/usr/include", "/usr/lib/arm-none-eabi/include", "/usr/lib/gcc"),
    "/usr/lib/picolibc/riscv64-unknown-elf/include",
)


def declared_suffixes(text: str, name: str) -> set[str]:
    """Return the parts after the network's name in all names and macros of its files."""
    return set(re.findall(rf"\b(?:{name}|{name.upper()})_(\w+)", text))


def test_no_header_contains_a_name_of_the_form_of_a_network() -> None:
    """No word of any header, including comments, has the form TITLE_net_SUFFIX."""
    files = [text for path, text in texts("pid").items() if path.endswith((".h", ".c"))]
    words = declared_suffixes("".join(files), "pid_net")
    assert {"t", "init", "OK", "ARENA_BYTES", "INPUT_0_SHAPE", "set_length_T", "H"} <= words
    words |= {"gpu_t", "gpu_open", "gpu_close", "GPU_H", "SHADERS_H", "IMPLEMENTATION"}
    ours = re.compile(rf"\b[A-Za-z]\w*_(?:net|NET)_(?:{'|'.join(sorted(words))})\b".encode())
    headers = [path for folder in FOLDERS for path in Path(folder).rglob("*.h")]
    headers += (HERE / "environments").glob("*.h")
    if len(headers) < 100:
        pytest.skip("no C library's headers on this computer")
    found = {match.decode() for path in headers for match in ours.findall(_bytes(path))}
    assert found <= {"VIRTIO_NET_OK"}  # From <linux/virtio_net.h>, which is for virtual machines.
    top = {path.name for folder in FOLDERS for path in Path(folder).glob("*.h")}
    assert not {name for name in top if name.endswith("_net.h")}


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_macro_has_the_name_of_a_member_or_parameter(library: str, tmp_path: Path) -> None:
    """Compare all words in the public headers with the macros after including all headers."""
    need(LIBRARIES[library][0])
    command = [*LIBRARIES[library], "-std=gnu11", "-dM", "-E", "-xc", "-"]
    lines = "".join(includes(library)).encode()
    done = subprocess.run(command, input=lines, capture_output=True, check=True)
    macros = set(re.findall(r"^#define (\w+)", done.stdout.decode(), re.MULTILINE))
    assert len(macros) > 1000
    header = texts("pid")["pid_net.h"] + texts("pid")["lengths/pid_net.h"]
    code = re.sub(r"/\*(?:.|\n)*?\*/|^#.*", "", header, flags=re.MULTILINE)
    plain = set(re.findall(r"\b[A-Za-z_]\w*", code))
    assert {"arena", "index", "user", "length_T"} <= plain
    assert not {word for word in plain & macros if not word.startswith(("int", "uint"))}
