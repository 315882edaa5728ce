#!/bin/bash
# A machine for one page of the documentation, in namespaces of its own: its paths, ports, users and host names are
# those of the page, and nobody else sees them. Needs root, since it mounts.
#
#   unshare --mount --net --pid --fork --mount-proc machine.sh SCRATCH REPOSITORY EXECGATE POLICYD
#
# Then each line of standard input runs a file of commands in this shell, and is answered with a line:
#   run NAME    in the foreground, its output in NAME.out; the answer is its status
#   start NAME  in the background
#   restart NAME  the same, once all in the background have been interrupted and have ended
set -eu
scratch=$1 repository=$2 execgate=$3 policyd=$4
mount --make-rprivate /
mount -t tmpfs tmpfs "$scratch/upper"
for place in /etc /var/lib /usr/local; do
    mkdir -p "$scratch/upper$place/files" "$scratch/upper$place/work"
    mount -t overlay overlay -o "lowerdir=$place,upperdir=$scratch/upper$place/files,workdir=$scratch/upper$place/work" "$place"
done
mount -t tmpfs tmpfs /run
ip link set lo up
echo '127.0.0.1 localhost policy.example policy-1.example policy-2.example' > /etc/hosts

# As `make install PREFIX=/usr/local` does, with the programs that are tested.
mkdir -p /usr/local/bin /usr/local/libexec
cp -R "$repository/target/dist/libexec/execgate" /usr/local/libexec/
touch /usr/local/bin/execgate /usr/local/bin/execgate-policyd
mount --bind "$execgate" /usr/local/bin/execgate
mount --bind "$policyd" /usr/local/bin/execgate-policyd

# A checkout to be in, and a home.
mkdir -p "$scratch/home" "$scratch/execgate" "$scratch/blocks" "$scratch/bin" /run/systemd
cp -R "$repository"/examples "$repository"/proto "$repository"/docs "$scratch/execgate/"
cp "$repository/tests/docs/systemctl" "$scratch/bin/"
ln -s systemctl "$scratch/bin/journalctl"
cd "$scratch/execgate"
git init --quiet
export HOME="$scratch/home" PATH="$scratch/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
export LC_ALL=C.UTF-8 PAGES_PYTHON="$repository/target/python/bin/python"
umask 022
set +eu
exec 3>&1
page_groups=
echo ready
while read -r page_do page_name; do
    page_file="$scratch/blocks/$page_name"
    case $page_do in
    run)
        page_failed=
        # shellcheck disable=SC1090 # a block of the page
        { . "$page_file"; page_status=$?; } > "$page_file.out" 2>&1 < /dev/null
        trap - ERR
        printf 'done %s %s\n' "$page_status" "$page_failed" | head -n 1 >&3
        ;;
    start | restart)
        if [ "$page_do" = restart ]; then
            for page_group in $page_groups; do kill -s INT -- "-$page_group"; done
            # shellcheck disable=SC2086 # words are what is meant
            wait $page_groups
            page_groups=
        fi
        # A group of its own, to be interrupted as a terminal does it.
        set -m
        # shellcheck disable=SC1090
        ( exec 3>&-; . "$page_file" ) > "$page_file.out" 2>&1 < /dev/null &
        page_groups="$page_groups $!"
        set +m
        echo 'done 0' >&3
        ;;
    esac
done
