#!/usr/bin/env bash
# The main job, shown: a build under the gate, and then the audit of its every exec.
#   examples/demo/demo.sh DIST
set -euo pipefail

dist=$(realpath "${1:?usage: demo.sh DIST}")
here=$(realpath "$(dirname "$0")")
work=$(realpath target)/demo

rm -rf "$work"
mkdir -p "$work/project" "$work/outbox"
cp "$here/build.sh" "$here/hello.c" "$work/project/"

exec 3< <(exec "$dist/bin/execgate-policyd" --log warn --listen "unix:$work/policy.sock" \
    --rules "$here/../rules/demo.rules.star" --data "$work/data")
policyd=$!
trap 'kill $policyd 2>/dev/null || true' EXIT
read -r listening <&3
echo "policy service: $listening"

export GIT_AUTHOR_NAME=demo GIT_AUTHOR_EMAIL=demo@localhost
export GIT_COMMITTER_NAME=demo GIT_COMMITTER_EMAIL=demo@localhost
export GIT_CONFIG_GLOBAL=/dev/null

echo
"$dist/bin/execgate" exec --policy "unix:$work/policy.sock" --no-login \
    --workdir "$work/project" --label job=demo -- ./build.sh

echo
echo 'outside, in the outbox:'
ls -l "$work/outbox"

echo
echo 'the audit:'
kill $policyd
wait $policyd || true
"$dist/bin/execgate" audit --data "$work/data"
