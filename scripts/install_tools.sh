#!/bin/sh
# Installs the missing system packages that Smelt needs. For tests, also installs ccache and glslc,
# which only save time, if apt has them.
#
#   scripts/install_tools.sh python|demo|test
#
# Runs apt-get as root or through `sudo -n`, never with a prompt. With APT=no, installs nothing.
#
# - `python` fails unless there is a Python that can create a virtual environment.
# - `demo` and `test` print what is missing and succeed if apt-get cannot be used: without the cross
#   tools, the demo runs on the host and tests are skipped.
# - `test` fails if apt-get ran but could not install a needed package.
set -u
purpose=${1:?usage: install_tools.sh python|demo|test}
here=$(dirname "$0")

has() {
    command -v "$1" >/dev/null 2>&1
}

compiles() { # COMPILER HEADER: whether the compiler finds a header of the C library
    printf '#include <%s>\n' "$2" | "$1" -E - >/dev/null 2>&1
}

links_sanitizers() { # COMPILER
    program=$(mktemp) || return 1
    echo 'int main(void) { return 0; }' | "$1" -fsanitize=address,undefined -x c - -o "$program" 2>/dev/null
    linked=$?
    rm -f "$program"
    return $linked
}

has_picolibc() {
    has riscv64-unknown-elf-gcc && [ -f "$(riscv64-unknown-elf-gcc -print-file-name=picolibc.specs)" ]
}

has_vulkan_driver() {
    ls /usr/share/vulkan/icd.d /etc/vulkan/icd.d 2>/dev/null | grep -q "json$"
}

has_validation_layer() {
    ls /usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json >/dev/null 2>&1
}

is_available() { # PACKAGE: whether apt has a version to install
    LC_ALL=C apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [0-9]'
}

python_packages() {
    python=$(sh "$here/find_python.sh" 2>/dev/null) || {
        [ -n "${PYTHON3:-}" ] || echo python3 python3-venv
        return
    }
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
}

tool_packages() {
    has gcc || echo gcc
    compiles gcc stdio.h || echo libc6-dev
    has arm-none-eabi-gcc || echo gcc-arm-none-eabi
    compiles arm-none-eabi-gcc string.h || echo libnewlib-arm-none-eabi
    has qemu-system-arm || echo qemu-system-arm
    if [ "$purpose" = test ]; then
        has g++ || echo g++
        if ! has clang; then
            echo clang
        elif ! links_sanitizers clang; then # in another package, which clang only recommends
            echo "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
        fi
        has cmake || echo cmake
        has gdb-multiarch || echo gdb-multiarch
        has glslangValidator || echo glslang-tools
        has spirv-val || echo spirv-tools
        compiles gcc vulkan/vulkan.h || echo libvulkan-dev
        has_vulkan_driver || echo mesa-vulkan-drivers
        has_validation_layer || echo vulkan-validationlayers
        has riscv64-unknown-elf-gcc || echo gcc-riscv64-unknown-elf
        has_picolibc || echo picolibc-riscv64-unknown-elf
        has qemu-system-riscv32 || echo qemu-system-misc
    fi
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@" </dev/null
    else
        sudo -n env DEBIAN_FRONTEND=noninteractive "$@" </dev/null
    fi
}

can_use_apt() {
    [ "${APT:-yes}" != no ] && has apt-get && as_root true >/dev/null 2>&1
}

apt_update() {
    # Continue if one source is broken: the packages may be in the others.
    as_root apt-get update -qq || echo "smelt: apt-get update failed, continuing" >&2
}

apt_install() { # PACKAGE...
    echo "smelt: installing $*"
    as_root apt-get install -qq -y -o Dpkg::Use-Pty=0 --no-install-recommends -o DPkg::Lock::Timeout=120 "$@"
}

apt_failed=no
install_missing() { # FUNCTION that prints the missing packages
    packages=$($1)
    before=
    if [ -n "$packages" ] && can_use_apt; then
        apt_update
        packages=$($1)
    fi
    # Repeat, because some checks above find a missing package only once another is installed.
    while [ -n "$packages" ] && [ "$packages" != "$before" ] && can_use_apt; do
        # shellcheck disable=SC2086  # a list of words
        apt_install $packages || apt_failed=yes
        before=$packages
        packages=$($1)
    done
    [ -n "$packages" ] || return 0
    echo "smelt: missing, and not installed by apt-get: $(echo $packages)" >&2
    return 1
}

install_faster() { # PACKAGE...: programs that only save time; it is no error if there are none
    for package; do
        has "$package" || ! can_use_apt || ! is_available "$package" || apt_install "$package" ||
            echo "smelt: continuing without $package" >&2
    done
}

if [ "$purpose" = python ]; then
    install_missing python_packages
    complete=$?
    sh "$here/find_python.sh" >/dev/null || exit 1
    [ $complete -eq 0 ] || echo "smelt: without it, Python cannot create a virtual environment." >&2
    exit $complete
fi

install_missing tool_packages
complete=$?
[ "$purpose" = demo ] || install_faster ccache glslc
[ $complete -eq 0 ] && exit 0
if [ "$purpose" = test ] && [ $apt_failed = yes ]; then
    echo "smelt: set APT=no to continue without them." >&2
    exit 1
fi
echo "smelt: without them, the demo runs on the host, and some tests are skipped." >&2
has cc || echo "smelt: without gcc nothing can be compiled here, not even the demo." >&2
