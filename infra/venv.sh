#!/usr/bin/env bash
# Make .venv from requirements.lock, every file checked against its hash, and Hostler in it by reference.
# Does nothing where that was done for this lock and this pyproject.toml.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

say() { printf 'venv: %s\n' "$*" >&2; }

find_python() {
    local candidate
    # The system's Python first: every service user may run it. A python3 on the PATH may be a
    # version manager's shim or live in a closed home folder, so each is tried, not just looked up.
    for candidate in ${PYTHON:-/usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    say "no Python 3.11 or later with the modules venv and ensurepip was found${PYTHON:+ at $PYTHON}."
    say "On Debian: infra/bootstrap.sh. Elsewhere: make PYTHON=/path/to/python3"
    return 1
}

stamp=.venv/.hostler-$(cat requirements.lock pyproject.toml | sha256sum | cut -c 1-16)
if [ -e "$stamp" ] && [ -x .venv/bin/hostler ]; then exit 0; fi
if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$(find_python)
    say "making .venv with $("$python" --version)"
    "$python" -m venv .venv
fi
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then .venv/bin/python -m ensurepip >/dev/null; fi
pip() { .venv/bin/python -m pip --quiet --disable-pip-version-check --no-input "$@"; }
pip install --require-hashes -r requirements.lock
pip install --no-deps --no-build-isolation -e .
rm -f .venv/.hostler-*
: >"$stamp"
