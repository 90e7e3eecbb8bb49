#!/usr/bin/env bash
# Give this machine what Hostler needs of it: Debian packages, system users. Says and does nothing
# where nothing is missing.
#
#   infra/bootstrap.sh           install what is missing (root, or sudo, asked for once)
#   infra/bootstrap.sh --check   only say what is missing; exit 1 if anything is
#   … --with PACKAGE             a package more, for one purpose only; may be given several times
set -euo pipefail
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"

packages=(
    ca-certificates dnsmasq-base dpkg e2fsprogs iproute2 kmod nftables openssh-client passwd
    procps python3 python3-venv qemu-system-x86 qemu-utils util-linux xfsprogs
)
# The control plane, Temporal, Postgres, the image reader, dnsmasq: each may read its own only.
users=(hostler hostler-temporal hostler-postgres hostler-image hostler-dns)

say() { printf 'bootstrap: %s\n' "$*" >&2; }

on_debian() {
    [ -r /etc/os-release ] || return 1
    # shellcheck disable=SC1091
    case " $(. /etc/os-release && echo "${ID:-} ${ID_LIKE:-}") " in *" debian "* | *" ubuntu "*) ;; *) return 1 ;; esac
    command -v apt-get >/dev/null && command -v dpkg-query >/dev/null
}

find_missing_packages() {
    local installed package
    installed=" $(dpkg-query -W -f '${db:Status-Status}=${Package} ' "${packages[@]}" 2>/dev/null || true)"
    missing_packages=()
    for package in "${packages[@]}"; do
        case $installed in *" installed=$package "*) ;; *) missing_packages+=("$package") ;; esac
    done
}

find_missing_users() {
    local user known groups
    known=$'\n'$(getent passwd "${users[@]}" || true)
    groups=$'\n'$(getent group "${users[@]}" || true)
    missing_users=()
    for user in "${users[@]}"; do
        case $known in *$'\n'"$user:"*) ;; *) missing_users+=("$user") && continue ;; esac
        case $groups in *$'\n'"$user:"*) ;; *) missing_users+=("$user") ;; esac
    done
}

say_missing() {
    if [ ${#missing_packages[@]} -gt 0 ]; then say "missing Debian packages: ${missing_packages[*]}"; fi
    if [ ${#missing_users[@]} -gt 0 ]; then say "missing system users (each with its group): ${missing_users[*]}"; fi
}

install_packages() {
    local install=(apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=120)
    local log
    log=$(mktemp)
    say "installing ${missing_packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # Lists that are absent, or so old that the mirror lacks their files, are fetched; good ones are not.
    if ! "${install[@]}" "${missing_packages[@]}" >"$log" 2>&1; then
        if ! { apt-get update -q && "${install[@]}" "${missing_packages[@]}"; } >"$log" 2>&1; then
            tail -n 20 "$log" >&2
            rm -f "$log"
            say "apt could not install: ${missing_packages[*]}"
            exit 1
        fi
    fi
    rm -f "$log"
}

add_users() {
    local user
    for user in "${missing_users[@]}"; do
        say "adding the system user $user"
        getent group "$user" >/dev/null || groupadd --system "$user"
        getent passwd "$user" >/dev/null ||
            useradd --system --gid "$user" --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "$user"
    done
}

arguments=("$@")
mode=install
while [ $# -gt 0 ]; do
    case $1 in
        --check) mode=--check ;;
        --with)
            # A word that apt cannot take for an option.
            [[ ${2:-} =~ ^[a-z0-9][a-z0-9+.-]+$ ]] || { say "--with takes the name of a package"; exit 2; }
            packages+=("$2")
            shift
            ;;
        *) say "usage: infra/bootstrap.sh [--check] [--with PACKAGE]"; exit 2 ;;
    esac
    shift
done

if ! on_debian; then
    say "this is not Debian or Ubuntu. Needed, by their Debian names: ${packages[*]};"
    say "and the system users ${users[*]}"
    exit 1
fi
find_missing_packages
find_missing_users
if [ ${#missing_packages[@]} -eq 0 ] && [ ${#missing_users[@]} -eq 0 ]; then
    if [ "$mode" = --check ]; then say "nothing is missing"; fi
    exit 0
fi
if [ "$mode" = --check ]; then
    say_missing
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    say_missing
    if ! command -v sudo >/dev/null; then
        say "this takes root, or sudo: run infra/bootstrap.sh as root once"
        exit 1
    fi
    say "asking sudo for root"
    exec sudo -- "$(readlink -f "$0")" "${arguments[@]}"
fi
if [ ${#missing_packages[@]} -gt 0 ]; then install_packages; fi
if [ ${#missing_users[@]} -gt 0 ]; then add_users; fi
