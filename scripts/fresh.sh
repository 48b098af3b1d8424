#!/usr/bin/env bash
# `make fresh`: the README's two commands on bare machines.
#
# For each Debian release it makes a root with the packages that the README's line names and nothing
# else, puts this checkout's committed files into it, and runs `make demo` (and with TESTS=1 also
# `make test`) as an ordinary user and as root, with bubblewrap and after removing it. Needs root,
# mmdebstrap, and 10 GB of disk a release; RELEASES="bookworm" narrows it down.
set -euo pipefail
cd "$(dirname "$0")/.."

releases=${RELEASES:-bookworm trixie}
build=${BUILD:-build/fresh}
tests=${TESTS:-0}
packages=$(sed -n 's/.*`apt-get install \([^`]*\)`.*/\1/p' README.md | head -1)
[[ -n $packages ]] || { echo "README.md names no packages" >&2; exit 1; }
[[ $(id -u) == 0 ]] || { echo "This makes and enters roots: run it as root" >&2; exit 1; }
command -v mmdebstrap >/dev/null || { echo "This needs mmdebstrap: apt-get install mmdebstrap" >&2; exit 1; }

# What this machine needs to reach its package indexes goes along, and no other setting of it.
passed=()
while IFS='=' read -r name value; do passed+=("$name=$value"); done < <(env | grep -iE '^(pip_(cert|index_url|extra_index_url|default_timeout)|https?_proxy|no_proxy|ssl_cert_file)=' || true)

enter() { # enter ROOT USER COMMAND: runs it there with its own processes and mounts
    local root=$1 user=$2 command=$3
    unshare --mount --pid --fork --kill-child bash -euc '
        root=$1; shift
        mount -t proc proc "$root/proc"; mount --rbind /sys "$root/sys"; mount --rbind /dev "$root/dev"
        mount --bind /etc/resolv.conf "$root/etc/resolv.conf"
        exec chroot "$root" "$@"' _ "$(realpath "$root")" \
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

mkdir -p "$build"
for release in $releases; do
    root="$build/$release"
    rm -rf --one-file-system "$root"
    # shellcheck disable=SC2086 # the packages are several words
    mmdebstrap --quiet --variant=apt --components=main \
        --include="ca-certificates,$(tr ' ' ',' <<<"$packages")" "$release" "$root" >"$build/$release.log" 2>&1 ||
        { echo "$release: mmdebstrap failed, see $build/$release.log" >&2; exit 1; }
    [[ -z ${PIP_CERT:-} ]] || install -D -m 644 "$PIP_CERT" "$root/$PIP_CERT"
    # By hand: Debian 13's smallest root has no useradd.
    echo 'learner:x:1000:1000::/home/learner:/bin/bash' >>"$root/etc/passwd"
    echo 'learner:x:1000:' >>"$root/etc/group"
    mkdir -p "$root/home/learner/bottleneck-lab"
    git archive HEAD | tar -x -C "$root/home/learner/bottleneck-lab"
    chown -R 1000:1000 "$root/home/learner"

    attempt "$release, learner, bubblewrap, make demo" "$root" learner "make demo"
    attempt "$release, root, bubblewrap, make demo" "$root" root "make demo"
    ((tests)) && attempt "$release, learner, bubblewrap, make test" "$root" learner "make test"
    chroot "$root" dpkg --purge --force-depends bubblewrap >/dev/null
    attempt "$release, learner, no sandbox, make demo" "$root" learner "make demo"
    attempt "$release, root, no sandbox, make demo" "$root" root "make demo"
done
exit $failed
