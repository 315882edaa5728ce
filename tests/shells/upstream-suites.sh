#!/usr/bin/env bash
# Runs the shells' own test suites without a wrapper and with one, and compares.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'USAGE'
Usage: tests/shells/upstream-suites.sh [--work DIR] [--only PATTERN] [--gate DIST] [bash|zsh|all]

Runs every test of bash's `make tests' and zsh's `make check' twice: with no
wrapper, and with one that executes what it is asked for. Some of these tests
fail on some machines (as root, without a terminal, by time); so success isn't
asked for, but the same result. A test that differs is run again, both ways; it
counts as different if it never came out the same.

  --work DIR       the work directory of patches/build-shells.sh, which has the
                   built sources (default: target/shells)
  --gate DIST      instead of that wrapper, the whole of execgate as built in
                   DIST, with a policy that runs everything
  --only PATTERN   just the tests whose names match, as run-exec or A0*

Several minutes. Exit status: 0 no difference, 1 some, 2 wrong usage.
USAGE
}

work=$here/../../target/shells what=all only='*' gate=''
while (($#)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --work) work=${2:?--work needs a value}; shift ;;
    --only) only=${2:?--only needs a value}; shift ;;
    --gate) gate=$(realpath "${2:?--gate needs a value}"); shift ;;
    bash | zsh | all) what=$1 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
[[ -d $work ]] || { echo "upstream-suites.sh: no directory $work; first: patches/build-shells.sh --work DIR" >&2; exit 2; }
work=$(realpath "$work")
unset EXEC_WRAPPER BASH_EXEC_WRAPPER PASSTHROUGH_LOG BASH_ENV ENV

T=$(mktemp -d "${TMPDIR:-/tmp}/suites.XXXXXX")
trap 'rm -rf "$T"' EXIT
chmod 755 "$T"
if [[ -n $gate ]]; then
  echo 'fallback("run")' >"$T/everything.rules"
  "$gate/bin/execgate-policyd" --log error --listen "unix:$T/policy.sock" \
    --rules "$T/everything.rules" --data "$T/data" >"$T/listening" &
  policyd=$!
  trap 'kill $policyd; rm -rf "$T"' EXIT
  until [[ -s $T/listening ]]; do sleep 0.1; done
else
  gcc -O1 -o "$T/passthrough" "$here/passthrough.c"
fi

# Numbers of processes, times and temporary names differ from run to run.
normal() {
  sed -E -e "s#$T/tmp[^ /:]*#TMP#g" -e 's/[0-9]+\.[0-9]+s?/N.N/g' -e 's/\b[0-9]{4,}\b/N/g' \
    -e 's#/(dev|proc/self)/fd/[0-9]+#FD#g' -e 's/ZTST_?[A-Za-z0-9.]*[0-9]+[A-Za-z0-9.]*/ZTST/g'
}

# run_one SHELL TEST MODE: the test's output and status, normalised
run_one() {
  local shell=$1 test=$2 tmp=$T/tmp-$3 status=0
  local directory
  local -a command
  rm -rf "$tmp"
  mkdir "$tmp"
  case $shell in
    bash)
      directory=$work/bash/src/tests
      command=(TMPDIR="$tmp" BASH_TSTOUT="$tmp/out" BUILD_DIR="$work/bash/src"
        THIS_SH="$work/bash/src/bash" PATH="$work/bash/src/tests:$PATH"
        timeout 180 sh "./$test") ;;
    zsh)
      directory=$work/zsh/src/Test
      command=(TMPDIR="$tmp" TMPPREFIX="$tmp/zsh" PATH="$PATH" ZTST_testlist="./$test" ZTST_srcdir=.
        ZTST_exe=../Src/zsh timeout 180 ../Src/zsh +Z -f ./runtests.zsh) ;;
  esac
  case $3$gate in
    plain*) ;;
    wrapped) command=("EXEC_WRAPPER=$T/passthrough" "PASSTHROUGH_LOG=$T/log" "${command[@]}") ;;
    wrapped*)
      command=("$gate/bin/execgate" --log error exec --sandbox none --no-login --policy "unix:$T/policy.sock" --label "test=$test"
        -- env "${command[@]}") ;;
  esac
  (cd "$directory" && env "${command[@]}") >"$T/raw" 2>&1 </dev/null || status=$?
  normal <"$T/raw"
  echo "status $status"
}

# Different on purpose. bash:run-shopt: a script without #! is run by a new bash, and
# not by one that puts its own options back, which forgets globskipdots.
known=(bash:run-shopt)

# How many commands were asked for so far.
asked() {
  if [[ -n $gate ]]; then
    "$gate/bin/execgate" audit --data "$T/data" --limit 1000000 --output json | wc -l
  else
    wc -l <"$T/log"
  fi
}

different=()
suite() {
  local shell=$1 dir pattern test try same n=0 failing=0 flaky=()
  case $shell in
    bash) dir=$work/bash/src/tests pattern='run-*' ;;
    zsh) dir=$work/zsh/src/Test pattern='*.ztst' ;;
  esac
  [[ -d $dir ]] || { echo "upstream-suites.sh: no $dir; first: patches/build-shells.sh $shell --work $work" >&2; exit 2; }
  if [[ $shell == bash ]]; then
    make -C "$work/bash/src" recho zecho printenv xcase >/dev/null 2>&1
    cp "$work"/bash/src/{recho,zecho,printenv,xcase} "$dir"
  fi
  : >"$T/log"
  for test in $(cd "$dir" && compgen -G "$pattern"); do
    case $test in run-all | run-minimal | run-gprof) continue ;; esac
    # shellcheck disable=SC2053 # a pattern
    [[ ${test%.ztst} == $only ]] || continue
    n=$((n + 1)) same=''
    for try in 1 2 3; do
      run_one "$shell" "$test" plain >"$T/plain.$try"
      run_one "$shell" "$test" wrapped >"$T/wrapped.$try"
      if cmp -s "$T/plain.$try" "$T/wrapped.$try"; then
        same=yes
        break
      fi
    done
    case $shell in
      bash) (($(wc -l <"$T/plain.1") == 1)) || failing=$((failing + 1)) ;;
      zsh) grep -q '^status [02]' "$T/plain.1" || failing=$((failing + 1)) ;;
    esac
    if [[ -z $same && " ${known[*]} " == *" $shell:$test "* ]]; then
      printf '%s: %s differs, as it is known to\n' "$shell" "$test"
    elif [[ -z $same ]]; then
      different+=("$shell:$test")
      printf -- '--- %s: %s: without a wrapper (-), with one (+)\n' "$shell" "$test"
      diff -U 2 "$T/plain.3" "$T/wrapped.3" | tail -n +3 | head -n 40 || :
    elif ((try > 1)); then
      flaky+=("$test")
    fi
  done
  printf '%s: %d tests; %d not clean even without a wrapper; %d commands asked for; not the same each time: %s\n' \
    "$shell" "$n" "$failing" "$(asked)" "${flaky[*]:-none}"
}

case $what in
  all) suite bash; suite zsh ;;
  *) suite "$what" ;;
esac
if ((${#different[@]})); then
  printf 'Different with a wrapper: %s\n' "${different[*]}"
  exit 1
fi
echo 'No other test differs with a wrapper.'
