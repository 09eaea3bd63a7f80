#!/bin/sh
# Prints the command of the first Python >= 3.11 on this machine, preferably one that can create a
# virtual environment. If there is none, prints what is missing and fails. PYTHON3=PATH selects one.
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
