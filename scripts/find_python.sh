#!/bin/sh
# Prints the first Python >= 3.11 of this machine, preferring one that can make a virtual
# environment; says what is missing and fails where there is none. PYTHON3=PATH names one instead.
set -u

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

found=
for candidate in ${PYTHON3:-python3 python3.14 python3.13 python3.12 python3.11}; do
    is_new_enough "$candidate" || continue
    if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        found=$candidate
        break
    fi
    found=${found:-$candidate}
done

if [ -z "$found" ]; then
    have=$("${PYTHON3:-python3}" --version 2>/dev/null || echo none)
    echo "smelt: needs Python 3.11 or newer (found: $have)." >&2
    echo "smelt: install one, or name it: make PYTHON3=/path/to/python3.12 ..." >&2
    exit 1
fi
echo "$found"
