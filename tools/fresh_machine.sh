#!/usr/bin/env bash
# Runs the README's two nox commands (In a clone) on a machine that has nothing: a minimal Debian with Python and its venv alone.
#
# No git, no compiler, no Node, no locale; as root and as an ordinary user, with /sys and without it. Such a system is
# made by debootstrap, once, and copied for each of the four ways, so that both commands start from nothing in each.
#
# Every command runs in mount and process namespaces of its own, with the new system as their root: with the last
# process the kernel takes down the mounts, and with the first one all processes, whatever ends this script. So there is
# nothing to unmount, and nothing outside the folder of the systems is changed.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: sudo tools/fresh_machine.sh [options] [suite] [tests] [-- COMMAND]

Runs the README's nox commands (both, or those that are named), or COMMAND by a shell in the checkout, each in a fresh
minimal Debian with what HEAD holds of this checkout. Ends with 0 where all commands do.

  --ways WAYS       of root, root-without-sys, user, user-without-sys, with commas between them; all by default
  --release NAME    Debian's release (bookworm, with Python 3.11)
  --mirror URL      Debian's mirror (debootstrap's own default)
  --folder FOLDER   where to make the systems; the first one, which is copied, stays there and is used the next time
                    (a temporary folder, which is removed)
  --keep            leave also the systems in which the commands ran, about 3 GB each

Settings of pip, uv and npm, proxies and certificates are carried in: their variables, their configuration files, and
the files and folders that these name. It needs Linux, root, git and debootstrap, and gigabytes of packages and models
from the network for each way.
TEXT
}

all_ways=(root root-without-sys user user-without-sys)
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
script=$checkout/tools/$(basename "${BASH_SOURCE[0]}")
user=newcomer

fail() {
    printf 'fresh_machine: %s\n' "$1" >&2
    exit 2
}

say() {
    printf '\n=== %s\n' "$1"
}

# What a machine needs to reach the registries of packages. Where caches are, and which Python is taken, is the fresh
# machine's own business.
carried_variables() {
    local name
    compgen -e | while read -r name; do
        case $name in
            SSL_CERT_FILE | SSL_CERT_DIR | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE | NODE_EXTRA_CA_CERTS) ;;
            [Hh][Tt][Tt][Pp]_[Pp][Rr][Oo][Xx][Yy] | [Hh][Tt][Tt][Pp][Ss]_[Pp][Rr][Oo][Xx][Yy]) ;;
            [Aa][Ll][Ll]_[Pp][Rr][Oo][Xx][Yy] | [Nn][Oo]_[Pp][Rr][Oo][Xx][Yy]) ;;
            *_DIR | *PYTHON*) continue ;;
            PIP_* | UV_* | NPM_CONFIG_* | npm_config_*) ;;
            *) continue ;;
        esac
        printf '%s=%s\n' "$name" "${!name}"
    done
}

system_files=(/etc/resolv.conf /etc/hosts /etc/pip.conf /etc/xdg/pip/pip.conf /etc/uv/uv.toml /etc/npmrc)
home_files=(.config/pip/pip.conf .pip/pip.conf .config/uv/uv.toml .npmrc)

# Files and folders outside the system that these settings name; of an index in a folder (file:///…/simple) also what
# is next to it, where its links may lead.
carried_paths() {
    local file
    {
        carried_variables
        for file in "${system_files[@]:2}" "${home_files[@]/#/$HOME/}"; do
            [[ ! -f $file ]] || cat "$file"
        done
    } | tr ' \t,"'\'=';' '[\n*]' | while read -r path; do
        case $path in
            file:///*) path=${path#file://} && dirname "${path%/}" ;;
            /*:/*) tr ':' '\n' <<<"$path" ;;
            /*) printf '%s\n' "$path" ;;
        esac
    done | sort -u
}

make_base() {
    say "a minimal Debian ($release), some minutes"
    rm -rf "$folder/base.part" "$folder/base"
    # With the namespaces' own /proc, since debootstrap mounts some and ends what it started there.
    in_namespaces --mount-proc debootstrap --variant=minbase --include=python3,python3-venv \
        "$release" "$folder/base.part" ${mirror:+"$mirror"} >"$folder/debootstrap.log" 2>&1 || {
        tail -n 5 "$folder/debootstrap.log" >&2
        fail "debootstrap failed; its last lines are above"
    }
    chroot "$folder/base.part" apt-get clean
    chroot "$folder/base.part" useradd --create-home "$user"
    local tool
    for tool in git cc gcc c++ g++ clang make node npm uv; do
        [[ -z $(chroot "$folder/base.part" sh -c "command -v $tool") ]] || fail "the minimal Debian has $tool"
    done
    mv "$folder/base.part" "$folder/base"
}

make_system() { # WAY
    local file home root=$folder/$1
    home=$root$(home_of "$1")
    rm -rf --one-file-system "$root"
    cp -a "$folder/base" "$root"
    for file in "${system_files[@]}"; do
        [[ ! -f $file ]] || install -D -m 644 "$file" "$root$file"
    done
    for file in "${home_files[@]}"; do
        [[ ! -f $HOME/$file ]] || install -D -m 644 "$HOME/$file" "$home/$file"
    done
    mkdir "$home/iree-gauntlet"
    git -c safe.directory="$checkout" -C "$checkout" archive HEAD | tar -x -C "$home/iree-gauntlet"
    chroot "$root" chown -R --reference="${home#"$root"}" "${home#"$root"}"
}

home_of() { # WAY
    case $1 in
        user*) printf '/home/%s' "$user" ;;
        *) printf '/root' ;;
    esac
}

# Waits for a command in namespaces of its own. In the background, with job control: an interrupt then ends the wait at
# once, and is not ignored in the command, as it is in what a shell without job control starts in the background.
in_namespaces() { # OPTIONS COMMAND…
    set -m
    setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child "$@" </dev/null &
    child=$!
    set +m
    local code=0
    wait "$child" || code=$?
    child=
    return "$code"
}

# As the first process of the namespaces: mounts what a machine has, and runs the command there.
inside() { # WAY ROOT COMMAND
    local way=$1 root=$2 command=$3 home name path
    home=$(home_of "$way")
    mount --bind "$root" "$root"
    # Always: no Linux that programs run on is without it. IREE's tools and Python find themselves by it.
    mount -t proc proc "$root/proc"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    for name in null zero full random urandom tty; do
        touch "$root/dev/$name"
        mount --bind "/dev/$name" "$root/dev/$name"
    done
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,mode=620,ptmxmode=666 devpts "$root/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    for name in in:0 out:1 err:2; do
        ln -s "/proc/self/fd/${name#*:}" "$root/dev/std${name%:*}"
    done
    [[ $way == *-without-sys ]] || mount --rbind /sys "$root/sys"
    while read -r path; do
        # A folder that the fresh machine has too stays its own.
        [[ -f $path || (-d $path && ! -e $root$path) ]] || continue
        if [[ -d $path ]]; then
            mkdir -p "$root$path"
        elif [[ ! -e $root$path ]]; then
            mkdir -p "$(dirname "$root$path")"
            touch "$root$path"
        fi
        mount --bind "$path" "$root$path"
        mount -o remount,bind,ro "$root$path"
    done < <(carried_paths)
    local -a variables as_user=()
    mapfile -t variables < <(carried_variables)
    variables+=(HOME="$home" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM="${TERM:-dumb}")
    if [[ $home == /home/* ]]; then
        as_user=(setpriv --reuid "$user" --regid "$user" --init-groups)
        variables+=(USER="$user" LOGNAME="$user")
    else
        variables+=(USER=root LOGNAME=root)
    fi
    cd "$root"
    # Not chroot alone, in which Linux lets nobody make user namespaces.
    pivot_root . mnt
    # The shell stays, as a first process that takes in orphans; the command gets a session, whose ids exist in here.
    # shellcheck disable=SC2016
    exec chroot . env -i "${variables[@]}" sh -c 'umount -l /mnt && cd "$1" && shift && setsid --wait "$@"; exit' \
        sh "$home/iree-gauntlet" "${as_user[@]}" sh -c "$command"
}

readme_command() { # SESSION
    local found
    found=$(sed -n '/^## In a clone/,/^## /p' "$checkout/README.md" | grep -E "^python3 .* $1( |\$)") ||
        fail "README.md, In a clone: no command for $1"
    printf '%s' "$found"
}

# shellcheck disable=SC2317  # a trap calls it
clean_up() {
    local code=$?
    trap '' INT TERM HUP
    [[ -z $child ]] || kill -KILL -- "-$child" 2>/dev/null || true
    [[ -z $child ]] || wait "$child" 2>/dev/null || true
    local tries name
    # The last processes of the namespaces may still be ending.
    for ((tries = 0; tries < 50; tries++)); do
        for name in "${made[@]}"; do
            rm -rf --one-file-system "${folder:?}/$name" 2>/dev/null || { sleep 0.2 && continue 2; }
        done
        break
    done
    [[ -z $temporary ]] || rm -rf --one-file-system "$temporary"
    exit "$code"
}

if [[ ${1:-} == --inside ]]; then
    inside "${@:2}"
fi

ways=("${all_ways[@]}") release=bookworm mirror='' folder='' keep='' temporary='' child='' names=() own='' made=()
while (($#)); do
    case $1 in
        --ways) IFS=, read -r -a ways <<<"${2:-}" && shift ;;
        --release) release=${2:-} && shift ;;
        --mirror) mirror=${2:-} && shift ;;
        --folder) folder=${2:-} && shift ;;
        --keep) keep=yes ;;
        -h | --help) usage && exit ;;
        suite | tests) names+=("$1") ;;
        --)
            shift
            own=$*
            [[ -n $own ]] || fail "-- stands before a command"
            break
            ;;
        *) usage >&2 && fail "$1: no such option" ;;
    esac
    shift || fail "the last option needs a value"
done
for way in "${ways[@]}"; do
    [[ " ${all_ways[*]} " == *" $way "* ]] || fail "--ways: no way is called '$way'; there are ${all_ways[*]}"
done
((${#ways[@]})) || fail "--ways: none is named; there are ${all_ways[*]}"
((${#names[@]})) || [[ -n $own ]] || names=(suite tests)
((EUID == 0)) || fail "needs root, for chroot and mounts: sudo $0"
for tool in debootstrap unshare pivot_root setpriv git; do
    command -v "$tool" >/dev/null || fail "needs $tool; on Debian: apt-get install debootstrap util-linux git"
done

trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
if [[ -z $folder ]]; then
    folder=$(mktemp -d "${TMPDIR:-/tmp}/fresh-machine.XXXXXX")
    [[ -n $keep ]] || temporary=$folder
else
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
fi
# A user of the system must pass through to its own files.
chmod 755 "$folder"
made+=(base.part)
[[ -d $folder/base ]] || make_base

results=() worst=0
for way in "${ways[@]}"; do
    [[ -n $keep ]] || made+=("$way")
    make_system "$way"
    for name in "${names[@]}" ${own:+own}; do
        command=$own
        [[ $name == own ]] || command=$(readme_command "$name")
        say "$way: $command"
        begun=$SECONDS code=0
        in_namespaces bash "$script" --inside "$way" "$folder/$way" "$command" || code=$?
        results+=("$(printf '%-17s %-6s exit code %3d, %4d s' "$way" "${name/own/--}" "$code" $((SECONDS - begun)))")
        ((code == 0)) || worst=1
    done
    [[ -n $keep ]] || rm -rf --one-file-system "${folder:?}/$way"
done
say "all of it"
printf '%s\n' "${results[@]}"
[[ -z $keep ]] || printf 'the systems are in %s\n' "$folder"
exit "$worst"
