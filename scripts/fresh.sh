#!/usr/bin/env bash
# `make fresh`: the README's two commands on bare machines.
#
# For each Debian release it makes a root with the packages that the README's line names and nothing
# else, and puts this checkout's committed files into it. There it runs the README's first commands
# with a wheel of its own, and `make demo` (with TESTS=1 also `make test`) as an ordinary user and as
# root, with bubblewrap and after removing it. With CONTAINER=1 it also carries out the Dockerfile and
# devcontainer.json in a root like that of their image. Needs root, mmdebstrap, and 10 GB of disk, 20
# for the container; RELEASES="bookworm" or RELEASES= narrows it down. Where everything passed, only
# the logs stay.
set -euo pipefail
cd "$(dirname "$0")/.."

releases=${RELEASES-bookworm trixie}
build=${BUILD:-build/fresh}
tests=${TESTS:-0}
container=${CONTAINER:-0}
packages=$(sed -n 's/.*`apt-get install \([^`]*\)`.*/\1/p' README.md | head -1)
[[ -n $packages ]] || { echo "README.md names no packages" >&2; exit 1; }
[[ $(id -u) == 0 ]] || { echo "This makes and enters roots: run it as root" >&2; exit 1; }
command -v mmdebstrap >/dev/null || { echo "This needs mmdebstrap: apt-get install mmdebstrap" >&2; exit 1; }

# What this machine needs to reach its package indexes goes along, and no other setting of it.
passed=()
while IFS='=' read -r name value; do passed+=("$name=$value"); done < <(env | grep -iE '^(pip_(cert|index_url|extra_index_url|default_timeout)|https?_proxy|no_proxy|ssl_cert_file)=' || true)

enter() { # enter ROOT USER COMMAND: runs it there with its own processes and mounts
    local root=$1 user=$2 command=$3
    # The root becomes that of the mount namespace: in a chroot, the kernel lets nobody make the user
    # namespaces that bubblewrap needs.
    unshare --mount --pid --fork --kill-child bash -euc '
        mount --bind "$1" "$1"; cd "$1"; shift
        mount -t proc proc proc; mount --rbind /sys sys; mount --rbind /dev dev
        mount --bind /etc/resolv.conf etc/resolv.conf
        pivot_root . mnt
        exec chroot . bash -euc "umount -l /mnt; exec \"\$@\"" _ "$@"' _ "$(realpath "$root")" \
        /usr/sbin/runuser -u "$user" -- env -i HOME="$(home_of "$user")" USER="$user" LOGNAME="$user" LANG=C.UTF-8 \
        PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin "${passed[@]}" \
        bash -c "cd /home/learner/bottleneck-lab && $command"
}

home_of() { [[ $1 == root ]] && echo /root || echo "/home/$1"; }

failed=0
attempt() { # attempt WORDS ROOT USER COMMAND: one line of the result
    local began=$SECONDS log="$build/${1// /-}.log" status=0
    enter "$2" "$3" "$4" >"$log" 2>&1 </dev/null || status=$?
    if ((status)); then failed=1; fi
    printf '%-60s %s  %4d s  %s\n' "$1" "$( ((status)) && echo "FAILED ($status)" || echo passed)" $((SECONDS - began)) "$log"
}

make_root() { # make_root ROOT RELEASE VARIANT PACKAGES: a bare Debian with this checkout's committed files
    local root=$1 release=$2 variant=$3 packages=$4
    rm -rf --one-file-system "$root"
    mmdebstrap --quiet --variant="$variant" --components=main --include="ca-certificates,mount,${packages// /,}" \
        "$release" "$root" >"$root.log" 2>&1 || { echo "$release: mmdebstrap failed, see $root.log" >&2; exit 1; }
    [[ -z ${PIP_CERT:-} ]] || install -D -m 644 "$PIP_CERT" "$root/$PIP_CERT"
    mkdir -p "$root/home/learner/bottleneck-lab"
    git archive HEAD | tar -x -C "$root/home/learner/bottleneck-lab"
}

remove_root() { # remove_root ROOT: unless something failed, which its files may explain
    ((failed)) || rm -rf --one-file-system "$1"
}

steps() { # steps STAGE: that stage of the Dockerfile as a shell script
    sed -e "/^FROM .* AS $1\$/,/^FROM /!d" -e '/^\(FROM\|USER\|CMD\) /d' \
        -e 's/^ENV /export /; s/^RUN </sh </; s/^COPY \. /cp -rT . /; s/^WORKDIR /cd /' Dockerfile
}

mkdir -p "$build"
first_commands=$(sed -n '/^```console$/,/^```$/{s/^\$ //p; /^```$/q}' README.md)
for release in $releases; do
    root="$build/$release"
    make_root "$root" "$release" apt "$packages"
    # By hand: Debian 13's smallest root has no useradd.
    echo 'learner:x:1000:1000::/home/learner:/bin/bash' >>"$root/etc/passwd"
    echo 'learner:x:1000:' >>"$root/etc/group"
    chown -R 1000:1000 "$root/home/learner"

    attempt "$release, learner, the wheel" "$root" learner \
        "python3 -m venv ~/core && ~/core/bin/pip wheel --no-deps -w ~/wheels ."
    attempt "$release, learner, the README's first commands" "$root" learner \
        ". ~/core/bin/activate && export PIP_FIND_LINKS=~/wheels && cd && set -ex; $first_commands"
    attempt "$release, learner, bubblewrap, make demo" "$root" learner "make demo"
    attempt "$release, root, bubblewrap, make demo" "$root" root "make demo"
    ((tests)) && attempt "$release, learner, bubblewrap, make test" "$root" learner "make test"
    chroot "$root" dpkg --purge --force-depends bubblewrap >/dev/null
    attempt "$release, learner, no sandbox, make demo" "$root" learner "make demo"
    attempt "$release, root, no sandbox, make demo" "$root" root "make demo"
    remove_root "$root"
done

if ((container)); then
    root="$build/container"
    make_root "$root" "$(sed -n 's/^FROM debian:\([a-z]*\)-slim AS base$/\1/p' Dockerfile)" minbase ca-certificates
    attempt "container, root, stage base" "$root" root "set -e; $(steps base)"
    chroot "$root" chown -R learner: /home/learner
    attempt "container, learner, devcontainer" "$root" learner \
        "$(sed -n 's/^ *"postCreateCommand": "\(.*\)",$/\1/p' .devcontainer/devcontainer.json)"
    attempt "container, root, stage lab" "$root" root "set -e; $(steps lab)"
    attempt "container, learner, a lab in its folder" "$root" learner \
        "$(sed -n 's/^ENV /export /p' Dockerfile); scripts/demo.sh /work"
    remove_root "$root"
fi
exit $failed
