#!/usr/bin/env bash
# Compares a patched shell, with and without a wrapper, with an unpatched one.
# Snippets are for the shell under test.
# shellcheck disable=SC2016
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'USAGE'
Usage: tests/shells/run.sh [--verbose] bash|zsh SHELL [NATIVE]

Runs each snippet with NATIVE, with SHELL, and with SHELL under a wrapper that
executes whatever it is asked for and notes it. Standard output, standard error
and the exit status must be the same three times, and the wrapper must have been
asked exactly for what the test says: once for each program that was started,
and never for a file that couldn't be.

  SHELL    the patched shell (target/dist/libexec/execgate/bash)
  NATIVE   one of the same version without our patch; default: SHELL without a
           wrapper. patches/build-shells.sh --unpatched builds it.

Needs gcc, python3, and for some of the tests root.
Exit status: 0 all passed, 1 some failed, 2 wrong usage.
USAGE
}

verbose=''
while [[ ${1:-} == -* ]]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    -v | --verbose) verbose=yes ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
if (($# < 2 || $# > 3)) || [[ $1 != bash && $1 != zsh ]]; then
  usage >&2
  exit 2
fi
kind=$1
for shell in "${@:2}"; do
  [[ -x $shell ]] || { echo "run.sh: no such shell: $shell (patches/build-shells.sh builds it)" >&2; exit 2; }
done
unset EXEC_WRAPPER BASH_EXEC_WRAPPER BASH_ENV ENV

T=$(mktemp -d "${TMPDIR:-/tmp}/shells.XXXXXX")
trap 'chmod -R u+rwx "$T"; rm -rf "$T"' EXIT
chmod 755 "$T"
# Where every user can execute them, wherever the checkout is.
patched=$T/patched/$kind native=$T/native/$kind
install -D -m 755 "$2" "$patched"
install -D -m 755 "${3:-$2}" "$native"
F=$T/f           # the files that snippets work with, made anew for each
wrapper=$T/passthrough
log=$T/log
gcc -O1 -o "$wrapper" "$here/passthrough.c"
printf 'int main(void){return 0;}' >"$T/t.c"
gcc -o "$T/elf-no-interp" -Wl,--dynamic-linker=/no/such/ld.so "$T/t.c"
mkdir "$T/bin"
case $kind in
  bash) flags=(--norc --noprofile) self=$patched ;;
  zsh) flags=(-f) self=/bin/sh ;;
esac

x() { cat >"$1"; chmod 755 "$1"; }
fixtures() {
  chmod -R u+rwx "$F" 2>/dev/null || :
  rm -rf "$F"
  mkdir -p "$F"/{noexec,isdir/cmd,good,other,locked}
  cd "$F"
  echo 'echo noexec' >noexec/cmd
  printf '#!/bin/sh\necho "good $0 $*"; exit 5\n' | x good/cmd
  printf '#!/bin/sh\necho "other $0 $*"\n' | x other/cmd2
  printf 'echo "script $0 $# $1 X=$X Y=$Y ${BASH_VERSION:-nobash} ${ZSH_VERSION:-nozsh}"\nexit 7\n' | x noshebang
  cp noshebang good/script
  : | x empty
  printf '\1\2\3\0\4binary\n' | x garbage
  printf '\177ELF\0garbage\n' | x elf-garbage
  head -c 60 /bin/true | x elf-short
  head -c 64 /bin/true | x elf-header
  cp "$T/elf-no-interp" .
  printf '#!/no/such/interpreter\necho no\n' | x bad-missing
  printf '#!/etc/passwd -x\necho no\n' | x bad-noexec
  printf '#!/etc\necho no\n' | x bad-dir
  printf '#!relative-interp -a\necho no\n' | x bad-relative
  printf '#!\necho no\n' | x bad-empty
  printf '#!   \t \necho no\n' | x bad-blank
  printf '#!/bin/sh\r\necho no\n' | x bad-crlf
  printf '#!/bin/sh' | x no-newline
  { printf '#!/'; head -c 400 /dev/zero | tr '\0' x; printf '\necho no\n'; } | x bad-long
  printf '#!%s/bad-loop\n' "$F" | x bad-loop
  printf '#!%s/good/cmd with arg\n' "$F" | x chain
  printf '#!%s/noshebang\necho chained\n' "$F" | x chain-noshebang
  printf '#! /bin/sh -u \necho "spaced $*"\n' | x spaced
  ln -s nowhere dangling
  ln -s loop loop
  mkfifo fifo
  chmod 755 fifo
  cp /bin/echo unreadable
  chmod 711 unreadable
  echo 'echo hi' >plain
}

failed=0 passed=0
fail() {
  failed=$((failed + 1))
  printf 'FAIL  %s: %s\n' "$kind" "$title"
  printf '      %s\n' "$@"
}

# once MODE SNIPPET [VAR=VALUE...]: leaves out, err, status, log
pre=()
once() {
  local mode=$1 snippet=$2 status=0
  shift 2
  fixtures
  rm -f "$log"
  : >"$log"
  chmod 666 "$log"
  case $mode in
    native) ln -sfn "$native" "$T/bin/$kind" ;;
    *) ln -sfn "$patched" "$T/bin/$kind" ;;
  esac
  [[ $mode != wrapped ]] || set -- "EXEC_WRAPPER=$wrapper" "$@"
  # SHLVL and _ would differ by what starts the shell.
  env -i HOME="$T" TMPPREFIX="$T/zsh" LC_ALL=C TERM=dumb PATH=/usr/bin:/bin F="$F" PASSTHROUGH_LOG="$log" "$@" \
    "${pre[@]}" timeout 30 "$T/bin/$kind" "${flags[@]}" -c "$snippet" \
    >"$T/out.$mode" 2>"$T/err.$mode" </dev/null || status=$?
  echo "$status" >"$T/status.$mode"
  sed -i -E 's#/(dev|proc/self)/fd/[0-9]+#FD#g; s#/[^|]*/zsh[A-Za-z0-9]{6}$#TMP#g' "$log"
}

# t TITLE SNIPPET LOG: LOG is what the wrapper must have been asked, sorted.
t() {
  local title=$1 snippet=$2 want=$3 got what
  shift 3
  once native "$snippet" "$@"
  once plain "$snippet" "$@"
  [[ ! -s $log ]] || fail "the wrapper was asked though none is set" "$(cat "$log")"
  once wrapped "$snippet" "$@"
  got=$(LC_ALL=C sort "$log")
  local bad=''
  for what in status out err; do
    for mode in plain wrapped; do
      cmp -s "$T/$what.native" "$T/$what.$mode" && continue
      bad=yes
      fail "$what differs ($mode)" "native: $(head -c 600 "$T/$what.native")" \
        "$mode: $(head -c 600 "$T/$what.$mode")"
    done
  done
  if [[ $got != "$want" ]]; then
    bad=yes
    fail "the wrapper was asked otherwise" "expected: ${want//$'\n'/$'\n'                }" \
      "asked:    ${got//$'\n'/$'\n'                }"
  fi
  [[ -n $bad ]] || passed=$((passed + 1))
  [[ -z $verbose ]] || printf '%s  %s: %s [%s] %s\n' "${bad:+bad}${bad:-ok}" "$kind" "$title" \
    "$(cat "$T/status.wrapped")" "$(head -n 1 "$T/err.wrapped")"
}

# refused TITLE SNIPPET STATUS [VAR=VALUE...]: under this wrapper nothing may run
refused() {
  local title=$1 want=$3 got
  once plain "$2" "${@:4}"
  got=$(cat "$T/status.plain")
  if [[ $got != "$want" || -s $T/out.plain ]]; then
    fail "status $got, not $want; output: $(cat "$T/out.plain" "$T/err.plain")"
  elif ! grep -q '^EXEC_WRAPPER: cannot start ' "$T/err.plain"; then
    fail "doesn't name the wrapper: $(cat "$T/err.plain")"
  else
    passed=$((passed + 1))
    [[ -z $verbose ]] || printf 'ok  %s: %s [%s] %s\n' "$kind" "$title" "$got" "$(tail -n 1 "$T/err.plain")"
  fi
}

lines() { printf '%s\n' "$@" | LC_ALL=C sort; }

# no ARG...: what is asked for a script without #!
sh_name='sh'
[[ $kind == zsh ]] || sh_name=$T/bin/bash
no() { echo "$self|$sh_name|$1"; }

# --- simple commands, arguments ---
t 'absolute path' '/bin/echo hi' '/bin/echo|/bin/echo|hi'
t 'relative path' './good/cmd a; echo $?' './good/cmd|./good/cmd|a'
t 'by PATH' 'true-ish; echo a; env true; echo $?' '/usr/bin/env|env|true'
t 'builtins are not asked for' 'echo a; printf b; true; :; cd /; pwd; [ a = a ]' ''
t 'odd arguments' $'/bin/echo -n -- "" " " "a\nb" \'\\\' "|" --help' $'/bin/echo|/bin/echo|-n|--|| |a\nb|\\|||--help'
t 'arguments that are not UTF-8' $'/bin/echo \xff\xfe\x80 caf\xe9 \x83 \xe2\x82\xac' $'/bin/echo|/bin/echo|\xff\xfe\x80|caf\xe9|\x83|\xe2\x82\xac'
t 'a path that is not UTF-8' $'/bin/cp /bin/echo $F/\xff\x83; $F/\xff\x83 a' \
  "$(lines $'/bin/cp|/bin/cp|/bin/echo|'"$F"$'/\xff\x83' "$F"$'/\xff\x83|'"$F"$'/\xff\x83|a')"
t 'an argument that looks like an option' '/bin/echo -v --version -h' '/bin/echo|/bin/echo|-v|--version|-h'
t 'exported variables reach the command' 'export X=1; Y=2; Z=3 /usr/bin/env | /bin/grep "^[XYZ]="' \
  "$(lines '/usr/bin/env|/usr/bin/env' '/bin/grep|/bin/grep|^[XYZ]=')"
t 'the environment is unchanged' 'V=1 /usr/bin/env | /bin/grep -v EXEC_WRAPPER=' \
  "$(lines '/usr/bin/env|/usr/bin/env' '/bin/grep|/bin/grep|-v|EXEC_WRAPPER=')"
t 'exit status and death by signal' '/bin/sh -c "exit 42"; echo $?; { /bin/sh -c "kill -9 \$\$"; } 2>/dev/null; echo $?' \
  "$(lines '/bin/sh|/bin/sh|-c|exit 42' '/bin/sh|/bin/sh|-c|kill -9 $$')"

# --- PATH search ---
t 'PATH: past missing, plain and directory' 'PATH=$F/none:$F/noexec:$F/isdir:$F/good:$F/other; cmd a b; echo $?' "$F/good/cmd|cmd|a|b"
t 'PATH: relative and empty parts' 'cd $F/good; PATH=none::../isdir; cmd r; cd ..; PATH=good; cmd s' "$(lines "$([[ $kind == bash ]] && echo ./)cmd|cmd|r" 'good/cmd|cmd|s')"
t 'PATH: a plain file only' 'PATH=$F/noexec; cmd; echo $?' ''
t 'PATH: a directory only' 'PATH=$F/isdir; cmd; echo $?' ''
t 'PATH: a file as directory' 'PATH=$F/plain:$F/good/cmd; cmd; echo $?' ''
t 'PATH: nowhere' 'PATH=$F/none:$F/good; nocmd a; echo $?' ''
t 'PATH: unset' 'unset PATH; nocmd-x; echo $?' ''
t 'PATH for one command' 'PATH=$F/good cmd one; PATH=$F/none cmd two; echo $?' "$F/good/cmd|cmd|one"
t 'PATH: a script without #!' 'PATH=$F/good; script a; echo $?' "$(no "$F/good/script|a")"
t 'hashing: moved after the first use' 'PATH=$F/good:$F/other:/bin; cmd 1; mv $F/good/cmd $F/other/cmd; cmd 2; echo $?; hash -r; cmd 3; echo $?' \
  "$(lines "$F/good/cmd|cmd|1" "/bin/mv|mv|$F/good/cmd|$F/other/cmd" "$F/other/cmd|cmd|3" "$([[ $kind == zsh ]] && echo "$F/other/cmd|cmd|2")" | grep .)"
t 'hashing: gone' 'PATH=$F/good:/bin; cmd 1; rm $F/good/cmd; cmd 2; echo $?' "$(lines "$F/good/cmd|cmd|1" "/bin/rm|rm|$F/good/cmd")"
t 'which and type ask for nothing' 'PATH=$F/noexec:$F/good; type cmd; command -v cmd; command -v nocmd; echo $?' ''

# --- what can't be executed ---
for file in missing noexec/cmd isdir/cmd isdir plain/x dangling loop fifo plain "$(printf '%0300d' 0)" ''; do
  # bash itself waits for whoever might write to it.
  [[ $kind != bash || $file != fifo ]] || continue
  t "not executable: ${file:0:20}" "$F/$file a; echo \$?" ''
  t "not executable, exec: ${file:0:20}" "exec $F/$file a; echo \$?" ''
done
t 'empty command word' '"" a; echo $?' ''
t 'a dot and a slash' '. ; echo $?' ''
t 'relative: missing, directory, plain' './missing; echo $?; ./isdir; echo $?; ./plain; echo $?; ./plain/; echo $?' ''
for file in garbage elf-garbage elf-short elf-header elf-no-interp bad-missing bad-noexec bad-dir bad-loop; do
  t "$file" "\$F/$file a; echo \$?" ''
  t "$file, by PATH" "PATH=\$F:/bin; $file a; echo \$?" ''
  t "$file, exec" "exec \$F/$file a; echo \$?" ''
done
t 'a #! that is not absolute' '$F/bad-relative; echo $?' ''
t 'a #! that ends in CR' '$F/bad-crlf; echo $?' ''
t 'arguments too long' '/bin/true $(/usr/bin/head -c 300000 /dev/zero | /usr/bin/tr "\0" x); echo $?' \
  "$(lines '/usr/bin/head|/usr/bin/head|-c|300000|/dev/zero' '/usr/bin/tr|/usr/bin/tr|\0|x')"

# --- scripts ---
t '#! with blanks and an argument' '$F/spaced a' "$F/spaced|$F/spaced|a"
t '#! without a newline' '$F/no-newline; echo $?' "$F/no-newline|$F/no-newline"
t '#! of a #!' '$F/chain a; echo $?' "$F/chain|$F/chain|a"
t 'no #!: status, $0, arguments, variables' 'export X=1; Y=2; $F/noshebang a b; echo $?' "$(no "$F/noshebang|a|b")"
t 'no #!: relative' 'cd $F; ./noshebang; echo $?' "$(no ./noshebang)"
t 'no #!: one command of -c' '$F/noshebang a' "$(no "$F/noshebang|a")"
t 'no #!: exec' 'exec $F/noshebang a' "$(no "$F/noshebang|a")"
t 'no #!: pipeline, subshell, substitution, background' \
  '$F/noshebang 1 | /bin/cat; ($F/noshebang 2); echo "$($F/noshebang 3)"; $F/noshebang 4 & wait; echo $?' \
  "$(lines "$(no "$F/noshebang|1")" "$(no "$F/noshebang|2")" "$(no "$F/noshebang|3")" "$(no "$F/noshebang|4")" '/bin/cat|/bin/cat')"
t 'no #!: redirections, function, command' 'f() { $F/noshebang "$@" >$F/o; }; f 1; echo $?; command $F/noshebang 2; read l <$F/o; echo $l' \
  "$(lines "$(no "$F/noshebang|1")" "$(no "$F/noshebang|2")")"
t 'no #!: odd arguments' '$F/noshebang -x; $F/noshebang "" b; $F/noshebang -- c' "$(lines "$(no "$F/noshebang|-x")" "$(no "$F/noshebang||b")" "$(no "$F/noshebang|--|c")")"
t '#! of a file without #!' '$F/chain-noshebang; echo $?' "$([[ $kind == bash ]] && no "$F/chain-noshebang")"
if [[ $kind == bash ]]; then
  t 'an empty file' '$F/empty; echo $?' ''
  for file in bad-empty bad-blank bad-long; do t "$file" "\$F/$file; echo \$?" "$(no "$F/$file")"; done
else
  t 'an empty file' '$F/empty; echo $?' "$(no "$F/empty")"
  for file in bad-empty bad-blank bad-long; do t "$file" "\$F/$file; echo \$?" ''; done
  t 'a #! that is found in PATH' 'PATH=$F:/bin; ln -s $F/good/cmd relative-interp 2>/dev/null; cd $F/other; ln -s $F/good/cmd $F/relative-interp; $F/bad-relative x; echo $?' \
    "$(lines "/bin/ln|ln|-s|$F/good/cmd|relative-interp" "/bin/ln|ln|-s|$F/good/cmd|$F/relative-interp" "$F/relative-interp|relative-interp|-a|$F/bad-relative|x")"
fi

# --- where commands stand ---
t 'function' 'f() { /bin/echo "f $1"; return 3; }; f a; echo $?' '/bin/echo|/bin/echo|f a'
t 'pipeline' '/bin/echo a | /bin/cat | /usr/bin/tr a b; false | /bin/true; echo $?' "$(lines '/bin/echo|/bin/echo|a' '/bin/cat|/bin/cat' '/usr/bin/tr|/usr/bin/tr|a|b' '/bin/true|/bin/true')"
t 'pipeline with a missing command' 'nocmd | /bin/cat; echo $?; /bin/echo a | nocmd; echo $?' "$(lines '/bin/cat|/bin/cat' '/bin/echo|/bin/echo|a')"
t 'subshell' '(/bin/echo a; (/bin/echo b)); echo $?' "$(lines '/bin/echo|/bin/echo|a' '/bin/echo|/bin/echo|b')"
t 'command substitution' 'a=$(/bin/echo a; exit 4); echo $a $?; b=`/bin/echo b`; echo $b' "$(lines '/bin/echo|/bin/echo|a' '/bin/echo|/bin/echo|b')"
t 'process substitution' '/bin/cat <(/bin/echo in); /bin/echo out > >(/bin/cat); wait; /bin/sleep 0.2' \
  "$(lines '/bin/cat|/bin/cat|FD' '/bin/echo|/bin/echo|in' '/bin/echo|/bin/echo|out' '/bin/cat|/bin/cat' '/bin/sleep|/bin/sleep|0.2')"
t 'background' '/bin/echo a & wait; /bin/sh -c "exit 9" & wait $!; echo $?; nocmd & wait $!; echo $?' "$(lines '/bin/echo|/bin/echo|a' '/bin/sh|/bin/sh|-c|exit 9')"
t 'here-document and redirections' $'/bin/cat <<E\nhere\nE\n/bin/cat <$F/plain 2>&1 >$F/o; /bin/cat $F/o; /bin/cat <$F/none; echo $?' \
  "$(lines '/bin/cat|/bin/cat' '/bin/cat|/bin/cat' "/bin/cat|/bin/cat|$F/o")"
t 'an error message goes where standard error does' 'nocmd 2>$F/e; /bin/cat $F/e; ./isdir 2>$F/e; /bin/cat $F/e' "$(lines "/bin/cat|/bin/cat|$F/e" "/bin/cat|/bin/cat|$F/e")"
t 'conditions and loops' 'if /bin/true; then for i in 1 2; do /bin/echo $i; done; fi; while /bin/false; do :; done; ! /bin/true || /bin/echo or' \
  "$(lines '/bin/true|/bin/true' '/bin/echo|/bin/echo|1' '/bin/echo|/bin/echo|2' '/bin/false|/bin/false' '/bin/true|/bin/true' '/bin/echo|/bin/echo|or')"
t 'eval, source, trap' 'eval "/bin/echo e"; . $F/plain; trap "/bin/echo t" EXIT' "$(lines '/bin/echo|/bin/echo|e' '/bin/echo|/bin/echo|t')"
t 'command' 'command /bin/echo a; command nocmd; echo $?; command -p env true; command $F/isdir; echo $?' \
  "$(lines '/bin/echo|/bin/echo|a' '/bin/env|env|true')"
t 'exec, redirections only' 'exec 3>$F/o; echo three >&3; exec 3>&-; /bin/cat $F/o' "/bin/cat|/bin/cat|$F/o"
t 'exec' 'exec /bin/echo gone; echo not' '/bin/echo|/bin/echo|gone'
t 'exec by PATH, with a redirection' 'exec env echo a >$F/o' '/usr/bin/env|env|echo|a'
t 'exec of a missing command' 'exec nocmd a; echo $?' ''
t 'exec in a subshell' '(exec /bin/sh -c "exit 8"); echo $?; (exec nocmd); echo $?; (exec $F/plain); echo $?' '/bin/sh|/bin/sh|-c|exit 8'
t 'exec -a' 'exec -a other /bin/sh -c "echo \$0"' '/bin/sh|other|-c|echo $0'
t 'exec -a, empty' "exec -a '' /bin/sh -c 'echo \"[\$0]\"'" '/bin/sh||-c|echo "[$0]"'
t 'exec -l' 'exec -l /bin/sh -c "echo \$0"' '/bin/sh|-/bin/sh|-c|echo $0'
t 'the same shell inside' '"$0" -c "nocmd; /bin/echo deep; exit 6"; echo $?' "$(lines "$T/bin/$kind|$T/bin/$kind|-c|nocmd; /bin/echo deep; exit 6" '/bin/echo|/bin/echo|deep')"
t 'descriptors are inherited' 'exec 7<$F/plain; /bin/sh -c "cat <&7"' '/bin/sh|/bin/sh|-c|cat <&7'
t 'ignored signals and umask are inherited' 'trap "" HUP; umask 27; /bin/sh -c "umask; kill -HUP \$\$; echo alive"' '/bin/sh|/bin/sh|-c|umask; kill -HUP $$; echo alive'

if [[ $kind == bash ]]; then
  t 'exec -c' 'exec -c /bin/echo a' ''      # the log is named in the environment, too
  t 'exec that fails, with execfail' 'shopt -s execfail; exec $F/bad-missing; echo $?; exec nocmd; echo $?; exec $F/plain; echo $?' ''
  t 'command_not_found_handle' 'command_not_found_handle() { /bin/echo "none: $1"; return 44; }; nocmd; echo $?' '/bin/echo|/bin/echo|none: nocmd'
  t 'coproc, time, [[ ]]' 'coproc { /bin/cat; }; echo x >&${COPROC[1]}; read -r l <&${COPROC[0]}; echo $l; [[ a == a ]] && TIMEFORMAT=; time /bin/true' \
    "$(lines '/bin/cat|/bin/cat' '/bin/true|/bin/true')"
  t 'lastpipe, nested functions, exported functions' 'shopt -s lastpipe; f() { /bin/echo f; }; export -f f; /bin/echo a | read x; echo $x; "$0" -c f' \
    "$(lines '/bin/echo|/bin/echo|a' "$T/bin/bash|$T/bin/bash|-c|f" '/bin/echo|/bin/echo|f')"
  t 'no #!: an exported function, not a plain one' 'f() { echo f; }; g() { echo g; }; export -f f; echo "f; g" >$F/noshebang; $F/noshebang' "$(no "$F/noshebang")"
  t 'no #!: options are reset, SHLVL' 'set -fu; echo "echo \$- \$SHLVL" >$F/noshebang; $F/noshebang' "$(no "$F/noshebang")"
  t 'no #!: posix mode' 'set -o posix; echo "shopt -o posix" >$F/noshebang; $F/noshebang' "$(no "$F/noshebang")"
  t 'posix mode' 'set -o posix; nocmd; echo $?; exec $F/plain; echo no' ''
  t 'restricted' 'set -r; /bin/echo a; echo $?; env true; exec env' '/usr/bin/env|env|true'
else
  t 'exec -c' 'exec -c /bin/echo a' ''
  t 'ARGV0' 'ARGV0=other /bin/sh -c "echo \$0"; ARGV0= /bin/sh -c "echo [\$0]"' "$(lines '/bin/sh|other|-c|echo $0' '/bin/sh||-c|echo [$0]')"
  t 'precommand -' ': ; - /bin/sh -c "echo \$0"; - sh -c "echo \$0"' "$(lines '/bin/sh|-/bin/sh|-c|echo $0' '/usr/bin/sh|-sh|-c|echo $0')"
  t 'command_not_found_handler' 'command_not_found_handler() { /bin/echo "none: $1"; return 44; }; nocmd; echo $?' '/bin/echo|/bin/echo|none: nocmd'
  t 'coproc, time, zargs' 'coproc /bin/cat; echo x >&p; read -r l <&p; echo $l; zmodload zsh/datetime; repeat 2 /bin/echo r' \
    "$(lines '/bin/cat|/bin/cat' '/bin/echo|/bin/echo|r' '/bin/echo|/bin/echo|r')"
  t '=(...), noglob, nocorrect' '/bin/cat =(/bin/echo eq) | /usr/bin/tr e E; noglob /bin/echo *' \
    "$(lines "/bin/echo|/bin/echo|eq" '/usr/bin/tr|/usr/bin/tr|e|E' '/bin/echo|/bin/echo|*' '/bin/cat|/bin/cat|TMP')"
  t 'PATH_DIRS' 'setopt pathdirs; PATH=$F; good/cmd a; echo $?; other/none; echo $?' "$(lines "$([[ $kind == zsh ]] && echo "good/cmd|good/cmd|a")")"
  t 'hash by name' 'hash foo=$F/good/cmd bar=$F/none; foo a; echo $?; bar; echo $?' "$F/good/cmd|foo|a"
  t 'no HASH_CMDS, PATH search' 'unsetopt hashcmds hashdirs; PATH=$F/noexec:$F/isdir:$F/good; cmd a; echo $?' "$F/good/cmd|cmd|a"
  t 'no #!: with a binary tail' 'print -n "echo tail\nexit 0\n\0\1\2" >$F/noshebang; $F/noshebang' "$(no "$F/noshebang")"
  t 'sh emulation' 'emulate sh; nocmd; echo $?; $F/noshebang a; /bin/echo e' "$(lines "$(no "$F/noshebang|a")" '/bin/echo|/bin/echo|e')"
fi

if ((EUID == 0)) && command -v setpriv >/dev/null; then
  pre=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  chmod 755 "$T"
  t 'as nobody: executable, not readable' '$F/unreadable a; echo $?' "$F/unreadable|$F/unreadable|a"
  t 'as nobody: a directory that is closed' 'PATH=$F/locked-none:$F/good; chmod 0 $F/good 2>/dev/null; /root/x; echo $?; cmd; echo $?' "$F/good/cmd|cmd"
  pre=()
fi

# --- the wrapper's own variable ---
w=EXEC_WRAPPER
t 'unset it' "unset $w; /bin/echo a" ''
t 'set it to nothing' "$w= /bin/echo a; export $w=; /bin/echo b" ''
t 'a value that begins with a blank' "$w=' $wrapper' /bin/echo a; export $w=\$'\\t$wrapper'; /bin/echo b" ''
t 'no longer exported' "typeset +x $w; /bin/echo a" ''
t 'a local variable' "f() { local $w=; /bin/echo a; }; f; /bin/cat \$F/plain" "/bin/cat|/bin/cat|$F/plain"
title='set, but not exported'
once plain "$w=$wrapper; /bin/echo a; /bin/echo b"
if [[ -s $log ]]; then fail "the wrapper was asked: $(cat "$log")"; else passed=$((passed + 1)); fi
title='exported on the way'
once plain "export $w=$wrapper; /bin/echo a"
if [[ $(cat "$log") == '/bin/echo|/bin/echo|a' ]]; then passed=$((passed + 1)); else fail "the wrapper was asked: $(cat "$log")"; fi
title='for one command'
once plain "$w=$wrapper /bin/echo a; /bin/echo b"
if [[ $(cat "$log") == '/bin/echo|/bin/echo|a' ]]; then passed=$((passed + 1)); else fail "the wrapper was asked: $(cat "$log")"; fi

alias_want=''
[[ $kind == zsh ]] || alias_want='/bin/echo|/bin/echo|a'
title='BASH_EXEC_WRAPPER'
once plain '/bin/echo a' "BASH_$w=$wrapper"
if [[ $(cat "$log") == "$alias_want" ]]; then passed=$((passed + 1)); else fail "the wrapper was asked: $(cat "$log")"; fi
title='EXEC_WRAPPER before BASH_EXEC_WRAPPER'
once plain '/bin/echo a' "BASH_$w=/no/such/wrapper" "$w=$wrapper"
if [[ $(cat "$log") == '/bin/echo|/bin/echo|a' ]]; then passed=$((passed + 1)); else fail "the wrapper was asked: $(cat "$log")"; fi

for snippet in '/bin/echo WRONG' 'env echo WRONG' "exec /bin/echo WRONG" "$F/noshebang" "$F/good/cmd" "PATH=$F/good; cmd"; do
  for bad in "$F/none:127" "$F/plain:126" "$F/isdir:126" "$F/noshebang:126" "$F/garbage:126" "$F/plain/x:12[67]"; do
    want=${bad##*:}
    # what a shell makes of ENOTDIR is its own affair
    [[ $want != '12[67]' ]] || want=$([[ $kind == bash ]] && echo 126 || echo 127)
    [[ $kind != zsh || $snippet != */noshebang ]] || want=126   # its first execve's status
    refused "bad wrapper ${bad%%:*}: $snippet" "$snippet" "$want" "$w=${bad%:*}"
  done
done

# --- start-up files ---
title='start-up files that set PATH anew'
printf 'PATH=/usr/bin:/bin\n' | tee "$T/.bash_profile" >"$T/.zprofile"
ln -sfn "$patched" "$T/bin/$kind"
path_of() { env -i HOME="$T" PATH="$1" "${@:2}" "$T/bin/$kind" -lc 'echo $PATH' 2>/dev/null; }
for want in "/usr/bin:/bin $(path_of "$T/bin:/bin")" \
  "$T/bin:/usr/bin:/bin $(path_of "$T/bin:/bin" "$w=$wrapper")" \
  "$T/bin:/usr/bin:/bin $(path_of "/none:$T/bin" "$w=$wrapper")" \
  "/usr/bin:/bin $(path_of /bin:/usr/bin "$w=$wrapper")"; do
  if [[ ${want%% *} == "${want#* }" ]]; then passed=$((passed + 1)); else fail "PATH is ${want#* }, not ${want%% *}"; fi
done
rm "$T/.bash_profile" "$T/.zprofile"

title='both patches add the same exec_wrapper.h'
header() { sed -n '/^--- .*exec_wrapper.h\|^--- \/dev\/null/,/^+#endif \/\* EXEC_WRAPPER_H/{/^[-+][-+]/d;p}' "$here/../../patches/$1/exec-wrapper.patch"; }
if [[ -n $(header zsh) && $(header zsh) == "$(header bash)" ]]; then passed=$((passed + 1)); else fail "they differ"; fi

# --- a terminal ---
title='interactive'
ln -sfn "$patched" "$T/bin/$kind"
: >"$log"
if out=$(python3 "$here/interactive.py" "$kind" "$T/bin/$kind" "$wrapper" "$log" 2>&1); then
  passed=$((passed + 1))
  [[ -z $verbose ]] || printf 'ok  %s: interactive\n' "$kind"
else
  fail "$out"
fi

printf '%s: %d passed, %d failed\n' "$kind" "$passed" "$failed"
((failed == 0))
