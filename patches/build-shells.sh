#!/usr/bin/env bash
# Builds the zsh and the bash that start $EXEC_WRAPPER in place of every command.
# See --help, and README.md next to this file.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$here")
me=patches/build-shells.sh

usage() {
  cat <<USAGE
Usage: $me [OPTION...] [zsh|bash|all]

Gets a shell's source, checks it, applies our patch, builds it, tests it, and
installs it. Without a shell named: all. Done before with the same patch, source
and options: nothing is done, in no time and without the network.

Where to:
  --prefix DIR      install under DIR             (default: target/dist)
                      DIR/libexec/execgate/zsh, DIR/libexec/execgate/bash
                      DIR/share/zsh/functions     zsh's autoloadable functions
                    Each shell is one file; DIR can be moved as a whole.
  --work DIR        sources and objects go here, and nowhere else; delete it at
                    any time                      (default: target/shells)
  --jobs N          how many jobs make runs at once (default: number of cores)

Which source (default: the source package of this Debian or Ubuntu, by apt with
a configuration of its own: the machine's is read and not changed; no root):
  --source PATH     a tarball, or a directory with an unpacked source (which is
                    copied, not changed); only with one shell named. Just our
                    patches are applied, not the distribution's.
  --allow-unknown-checksum
                    take a tarball that patches/checksums.sha256 doesn't list
  --refresh         look for a newer source package even if built already

Other:
  --list-dependencies     print the packages that a build needs, and stop
  --install-dependencies  install those that are missing first (root, apt-get)
  --unpatched       leave out our patch: the shell to compare with in
                    tests/shells; it is installed as zsh-unpatched, bash-unpatched
  -h, --help        this text

Examples:
  $me --install-dependencies --prefix target/dist
  $me bash --prefix /opt/execgate --work /tmp/shells --jobs 2
  $me zsh --source ~/zsh-5.9.tar.xz --prefix target/dist

Exit status: 0 built, or there was nothing to do; 1 failed; 2 wrong usage.
USAGE
}

say() { printf '%s: %s\n' "$me" "$*" >&2; }
die() {
  printf '%s: error: %s\n' "$me" "$1" >&2
  shift
  local hint
  for hint; do printf '  hint: %s\n' "$hint" >&2; done
  exit 1
}
bad_usage() {
  printf '%s: %s\nTry: %s --help\n' "$me" "$1" "$me" >&2
  exit 2
}

# command (or file, beginning with -l: a static library):package
needed=(
  gcc:gcc make:make patch:patch xz:xz-utils gzip:gzip tar:tar
  -lc.a:libc6-dev -ltinfo.a:libncurses-dev -lncursesw.a:libncurses-dev
)

missing_packages() {
  local pair what package out=()
  for pair in "${needed[@]}"; do
    what=${pair%%:*} package=${pair#*:}
    case $what in
      -l*)
        command -v gcc >/dev/null || { out+=("$package"); continue; }
        [[ $(gcc -print-file-name="lib${what#-l}") == /* ]] || out+=("$package") ;;
      *) command -v "$what" >/dev/null || out+=("$package") ;;
    esac
  done
  ((${#out[@]} == 0)) || printf '%s\n' "${out[@]}" | sort -u
}

prefix=$top/target/dist work=$top/target/shells source='' what=''
jobs=$(nproc 2>/dev/null || echo 1)
unpatched='' unknown_ok='' refresh='' install_deps=''

value() { [[ -n ${2:-} ]] || bad_usage "$1 needs a value"; }
while (($#)); do
  case $1 in
    --prefix=* | --work=* | --source=* | --jobs=*)
      set -- "${1%%=*}" "${1#*=}" "${@:2}"
      continue ;;
    --prefix) value "$@"; prefix=$2; shift ;;
    --work) value "$@"; work=$2; shift ;;
    --source) value "$@"; source=$2; shift ;;
    --jobs) value "$@"; jobs=$2; shift ;;
    --unpatched) unpatched=yes ;;
    --allow-unknown-checksum) unknown_ok=yes ;;
    --refresh) refresh=yes ;;
    --install-dependencies) install_deps=yes ;;
    --list-dependencies)
      printf '%s\n' "${needed[@]#*:}" | sort -u
      exit 0 ;;
    -h | --help) usage; exit 0 ;;
    zsh | bash | all)
      [[ -z $what ]] || bad_usage "more than one shell named: $what and $1 (say all for both)"
      what=$1 ;;
    -*) bad_usage "unknown option: $1" ;;
    *) bad_usage "unknown shell: $1 (zsh, bash or all)" ;;
  esac
  shift
done
[[ -n $what ]] || what=all
[[ $jobs =~ ^[1-9][0-9]*$ ]] || bad_usage "--jobs needs a number from 1 up, not: $jobs"
if [[ -n $source ]]; then
  [[ $what != all ]] || bad_usage "--source is one shell's: name zsh or bash as well"
  [[ -e $source ]] || die "no such file or directory: $source"
  source=$(realpath "$source")
fi

if [[ -n $install_deps ]]; then
  mapfile -t packages < <(missing_packages)
  if ((${#packages[@]})); then
    ((EUID == 0)) || die "--install-dependencies needs root" \
      "as root: apt-get install ${packages[*]}"
    say "installing ${packages[*]}"
    apt-get update >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      "${packages[@]}" >&2
  fi
fi

mkdir -p "$prefix" "$work" || die "can't make --prefix or --work"
prefix=$(realpath "$prefix") work=$(realpath "$work")
[[ $work != *[[:space:]]* ]] || die "--work has a blank in its path, which the shells' makefiles can't bear: $work"
exec 9>"$work/lock"
flock -n 9 || { say "waiting for another build in $work"; flock 9; }

apt_dir=$work/apt
trap 'rm -rf "$apt_dir"' EXIT
trap 'die "unexpected failure in line $LINENO of $me: $BASH_COMMAND"' ERR
set -E

# --- the source package -----------------------------------------------------

# The machine's sources that are the distribution itself, as deb-src lines for
# the components $2... and the suites that match $1.
deb_src_lines() {
  local suites=$1 components=$2 file
  local -a lists=()
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
    [[ -r $file ]] && lists+=("$file")
  done
  ((${#lists[@]})) || return 0
  awk -v suites="$suites" -v wanted="$components" '
    function keyring_ok(k) {
      return k == "" || k ~ /(debian|ubuntu)[^\/]*-archive[^\/]*\.(gpg|asc)$/
    }
    function emit(uris, list, comps, options, keyring,    u, s, c, w, nu, ns, nc, nw, i, j, out) {
      if (!keyring_ok(keyring)) return
      out = ""
      nw = split(wanted, w, " ")
      nc = split(comps, c, " ")
      for (i = 1; i <= nw; i++) for (j = 1; j <= nc; j++) if (c[j] == w[i]) out = out " " w[i]
      if (out == "") return
      nu = split(uris, u, " ")
      ns = split(list, s, " ")
      for (i = 1; i <= nu; i++) for (j = 1; j <= ns; j++)
        if (s[j] ~ suites)
          print "deb-src " (options == "" ? "" : "[" options "] ") u[i] " " s[j] out
    }
    # One-line form: deb [options] URI suite component...
    function oneline(line,    n, f, i, options, keyring, o, comps) {
      sub(/#.*/, "", line)
      if (line !~ /^[ \t]*deb(-src)?[ \t]/) return
      options = keyring = comps = ""
      if (match(line, /\[[^]]*\]/)) {
        n = split(substr(line, RSTART + 1, RLENGTH - 2), o, " ")
        line = substr(line, 1, RSTART - 1) " " substr(line, RSTART + RLENGTH)
        for (i = 1; i <= n; i++) {
          if (o[i] !~ /^(signed-by|trusted|check-valid-until|allow-insecure)=/) continue
          options = options (options == "" ? "" : " ") o[i]
          if (o[i] ~ /^signed-by=/) keyring = substr(o[i], 11)
        }
      }
      n = split(line, f, " ")
      for (i = 4; i <= n; i++) comps = comps " " f[i]
      emit(f[2], f[3], comps, options, keyring)
    }
    # deb822 form: one stanza
    function stanza(    options, k) {
      if (("types" in v) && tolower(v["enabled"]) != "no") {
        options = ""
        if (v["signed-by"] != "") options = "signed-by=" v["signed-by"]
        for (k in v)
          if (k ~ /^(trusted|check-valid-until|allow-insecure)$/) options = options " " k "=" v[k]
        sub(/^ /, "", options)
        emit(v["uris"], v["suites"], v["components"], options, v["signed-by"])
      }
      for (k in v) delete v[k]
      key = ""
    }
    FNR == 1 && NR > 1 { stanza() }
    FILENAME ~ /\.list$/ { oneline($0); next }
    /^#/ { next }
    /^[ \t]*$/ { stanza(); next }
    /^[ \t]/ { sub(/^[ \t]+/, ""); v[key] = v[key] " " $0; next }
    {
      key = tolower($0)
      sub(/:.*/, "", key)
      sub(/^[^:]*:[ \t]*/, "")
      sub(/[ \t]+$/, "")
      v[key] = $0
    }
    END { stanza() }
  ' "${lists[@]}" | sort -u
}

apt_private() { "$1" -qq -c "$apt_dir/apt.conf" "${@:2}"; }

# Sets up apt of our own and gets the indexes of source packages, once.
prepare_apt() {
  local components=$1 id codename suites lines origin origins
  # shellcheck source=/dev/null
  id=$(. /etc/os-release && printf '%s' "${ID:-unknown}")
  # shellcheck source=/dev/null
  codename=$(. /etc/os-release && printf '%s' "${UBUNTU_CODENAME:-${VERSION_CODENAME:-}}")
  [[ $id == debian || $id == ubuntu ]] ||
    say "notice: this is $id, not Debian or Ubuntu; trying its source packages all the same"
  suites="^${codename:-none}(-updates|-security|/updates)?\$"
  lines=$(deb_src_lines "$suites" "$components")
  if [[ -z $lines ]]; then
    suites='^(stable|testing|unstable|sid|oldstable)(-updates|-security|/updates)?$'
    lines=$(deb_src_lines "$suites" "$components")
  fi
  [[ -n $lines ]] ||
    die "no entry for ${codename:-this release} ($components) of the distribution itself among apt's sources" \
      "get the source elsewhere and name it: $me bash --source FILE"

  rm -rf "$apt_dir"
  mkdir -p "$apt_dir"/{etc,lists/partial,cache/archives/partial}
  printf '%s\n' "$lines" >"$apt_dir/etc/sources.list"
  {
    printf 'Dir::Etc::sourcelist "%s";\n' "$apt_dir/etc/sources.list"
    printf 'Dir::Etc::sourceparts "/dev/null";\n'
    printf 'Dir::State::lists "%s";\n' "$apt_dir/lists"
    printf 'Dir::Cache "%s";\n' "$apt_dir/cache"
    printf 'Dir::Log "%s";\n' "$apt_dir"
    printf 'APT::Sandbox::User "";\nAcquire::Languages "none";\n'
    printf '#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n'
    printf '#clear APT::Update::Post-Invoke-Success;\n'
  } >"$apt_dir/apt.conf"
  say "reading the indexes of the distribution's source packages"
  apt_private apt-get update >&2 ||
    die "apt-get update failed with these sources: ${lines//$'\n'/; }" \
      "no network, or the machine's own apt-get update fails as well?" \
      "without a network: $me bash --source FILE"
  # shellcheck disable=SC2016 # apt expands it
  origins=$(apt_private apt-get indextargets --format '$(ORIGIN)' 'Created-By: Sources' | sort -u)
  for origin in ${origins:-none}; do
    [[ $origin == Debian || $origin == Ubuntu ]] ||
      die "apt source of an unexpected origin: $origin" \
        "name a source yourself: $me bash --source FILE"
  done
}

apt_has() { [[ -n $(apt_private apt-cache showsrc "$1" 2>/dev/null) ]]; }

# Downloads the source package of $1 into directory $2.
fetch_package() {
  local name=$1 dir=$2
  command -v apt-get >/dev/null ||
    die "no apt-get here: this gets source packages from Debian or Ubuntu only" \
      "name a source yourself: $me $name --source FILE"
  [[ -e $apt_dir/apt.conf ]] || prepare_apt main
  apt_has "$name" || { prepare_apt 'main universe'; apt_has "$name"; } ||
    die "the distribution has no source package $name" \
      "name a source yourself: $me $name --source FILE"
  rm -rf "$dir"
  mkdir -p "$dir"
  # apt has the checksums from its signed index, and refuses what doesn't match.
  (cd "$dir" && apt_private apt-get source --download-only --only-source "$name" >&2) ||
    die "apt-get couldn't get the source package $name"
}

# --- unpacking, patching ----------------------------------------------------

sum_of() { sha256sum "$1" | cut -d ' ' -f 1; }

unpack() {
  tar -x -f "$1" -C "$2" --strip-components=1 --no-same-owner ||
    die "can't unpack $1" "is it a tar archive, and not cut short?"
}

# Applies patch $2 in directory $1.
apply() {
  local out
  out=$(patch -d "$1" -p1 -f --no-backup-if-mismatch -i "$2" 2>&1) ||
    die "${2##*/} doesn't apply to this source:"$'\n'"$out" \
      "patches/${2#"$here"/} is for the versions that are named in patches/README.md" \
      "another version needs its own patch; see 'Another version' there"
}

# Puts the source of shell $1, patched, into $2/src and its name into $2/source.
get_source() {
  local name=$1 dir=$2 file sum known version patches=$2/src/debian/patches line
  rm -rf "$dir/src"
  mkdir -p "$dir/src"
  if [[ -z $source ]]; then
    fetch_package "$name" "$dir/package"
    for file in "$dir/package"/*.orig.tar.*; do
      [[ $file == *.asc ]] && continue
      sum=$(sum_of "$file")
      known=$(awk -v n="${file##*/}" '!/^#/ && $2 == n { print $1 }' "$here/checksums.sha256")
      if [[ -z $known ]]; then
        say "notice: ${file##*/} isn't in patches/checksums.sha256; verified by apt alone"
      elif [[ $sum != "$known" ]]; then
        die "${file##*/} isn't the file it should be (SHA-256 $sum, not $known)" \
          "don't build it; find out where it comes from"
      fi
      unpack "$file" "$dir/src"
    done
    version=$(basename "$dir/package"/*.dsc .dsc)
    file=$(echo "$dir/package"/*.debian.tar.*)
    [[ ! -e $file ]] || tar -x -f "$file" -C "$dir/src" --no-same-owner
    if [[ -e $patches/series ]]; then
      while read -r line _; do
        [[ -z $line || $line == \#* ]] || apply "$dir/src" "$patches/$line"
      done <"$patches/series"
    fi
    printf 'package %s\n' "$version" >"$dir/source"
  elif [[ -d $source ]]; then
    say "notice: $source is a directory: there is no checksum to check"
    cp -a "$source/." "$dir/src/"
    rm -rf "$dir/src/.git"
    printf 'directory %s\n' "$source" >"$dir/source"
  else
    sum=$(sum_of "$source")
    if ! awk '!/^#/ { print $1 }' "$here/checksums.sha256" | grep -qx "$sum"; then
      [[ -n $unknown_ok ]] ||
        die "patches/checksums.sha256 doesn't know this file: $source (SHA-256 $sum)" \
          "if you trust it: --allow-unknown-checksum"
      say "notice: taking $source with an unknown checksum, as you said"
    fi
    unpack "$source" "$dir/src"
    printf 'tarball %s\n' "$sum" >"$dir/source"
  fi
  case $name in
    bash) file=execute_cmd.c ;;
    zsh) file=Src/exec.c ;;
  esac
  [[ -e $dir/src/$file ]] || die "this isn't a source of $name: it has no $file" \
    "the first directory level of a tarball is stripped"
  if [[ ! -e $dir/src/configure ]]; then
    if [[ $name != zsh ]] || ! command -v autoconf >/dev/null; then
      die "this source of $name has no configure script" \
        "for a checkout of zsh's repository: apt-get install autoconf"
    fi
    (cd "$dir/src" && ./Util/preconfig >/dev/null)
  fi
  chmod +x "$dir/src/configure"
  for file in "$here/$name"/*.patch; do
    [[ -n $unpatched && $file == */exec-wrapper.patch ]] || apply "$dir/src" "$file"
  done
}

# --- building ---------------------------------------------------------------

# Runs a command with its output in log file $1; shows the end if it fails.
logged() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 </dev/null 9>&- || {
    tail -n 25 "$log" >&2
    die "this failed: $*" "all of its output: $log"
  }
}

# Static ncurses only, so that the shell needs nothing but libc.
static_libs() {
  local lib path
  mkdir -p "$1"
  for lib in tinfo ncursesw; do
    path=$(gcc -print-file-name="lib$lib.a")
    [[ $path != /* ]] || ln -sf "$path" "$1/lib$lib.a"
  done
}

cflags=${CFLAGS:--O2 -fstack-protector-strong}
ldflags=${LDFLAGS:--Wl,-z,relro,-z,now}

# A source has files that are made from others; whatever their dates say after
# patching and copying, they aren't to be made anew with tools that nobody needs.
generated_is_new() {
  local file
  touch ../now
  for file in aclocal.m4 configure stamp-h.in config.h.in y.tab.c y.tab.h; do
    [[ ! -e $file ]] || touch -r ../now "$file"
  done
}

build_bash() {
  local dir=$1
  cd "$dir/src"
  generated_is_new
  logged "$dir/configure.log" env CFLAGS="$cflags" LDFLAGS="$ldflags -L$dir/lib" \
    bash_cv_termcap_lib=libtinfo ./configure --prefix=/usr --without-bash-malloc
  logged "$dir/make.log" make -j "$jobs" bash
  built=$dir/src/bash
}

build_zsh() {
  local dir=$1
  cd "$dir/src"
  generated_is_new
  logged "$dir/configure.log" env CFLAGS="$cflags" LDFLAGS="$ldflags -L$dir/lib" \
    ./configure --prefix=/usr --disable-dynamic --with-tcsetpgrp \
    --with-term-lib='ncursesw tinfo' --disable-gdbm --disable-pcre --disable-cap \
    --enable-maildir-support --enable-max-jobtable-size=256 \
    --enable-etcdir=/etc/zsh --enable-function-subdirs \
    --enable-fndir=/usr/share/zsh/functions \
    --enable-site-fndir=/usr/local/share/zsh/site-functions \
    --enable-additional-fpath=/usr/share/zsh/vendor-functions,/usr/share/zsh/vendor-completions
  # Each module that can be built here becomes a part of the program.
  sed -i -E '/name=zsh\/(example|db\/gdbm|pcre|attr|cap) /!s/ link=(no|dynamic) / link=static /' \
    config.modules
  logged "$dir/prep.log" make -C Src prep
  logged "$dir/make.log" make -C Src -j "$jobs"
  logged "$dir/functions.log" make install.fns DESTDIR="$dir/stage"
  built=$dir/src/Src/zsh
}

# --- testing ----------------------------------------------------------------

# smoke NAME PROGRAM: short; tests/shells is the real test.
smoke() {
  local name=$1 shell=$2 tmp got
  tmp=$(mktemp -d "$work/smoke.XXXXXX")
  cp "$shell" "$tmp/moved-shell"
  shell=$tmp/moved-shell
  # shellcheck disable=SC2016 # for the wrapper
  printf '#!/bin/sh\necho "asked $1 $2" >>"%s/log"\nf=$1\nshift 2\nexec "$f" "$@"\n' "$tmp" >"$tmp/wrapper"
  chmod +x "$tmp/wrapper"
  expect() {
    [[ $2 == "$3" ]] || die "the new $name fails its test: $1"$'\n'"  expected: $3"$'\n'"  got:      $2" \
      "it hasn't been installed; the files of this test are in $tmp"
  }
  clean() { (cd "$tmp" && env -u EXEC_WRAPPER -u BASH_EXEC_WRAPPER -u BASH_ENV -u ENV ZDOTDIR="$tmp" HOME="$tmp" "$@") }

  got=$(clean "$shell" -c '/bin/echo plain')
  expect 'runs a command' "$got" plain
  if [[ -n $unpatched ]]; then rm -rf "$tmp"; return; fi
  got=$(clean EXEC_WRAPPER="$tmp/wrapper" "$shell" -c '/bin/echo a "b c"; (exit 3); echo $?')
  expect 'the command still runs under a wrapper' "$got" $'a b c\n3'
  expect 'the wrapper is started once' "$(cat "$tmp/log" 2>&1)" 'asked /bin/echo /bin/echo'
  got=$(clean EXEC_WRAPPER="$tmp/wrapper" "$shell" -c 'no-such-command 2>/dev/null; echo $?')
  expect 'a command that is not found' "$got" 127
  got=$(clean EXEC_WRAPPER="$tmp/missing" "$shell" -c '/bin/echo WRONG 2>/dev/null; echo $?' 2>/dev/null)
  expect 'nothing runs when the wrapper is missing' "$got" 127
  expect 'the wrapper is asked for nothing else' "$(wc -l <"$tmp/log")" 1
  case $name in
    bash)
      # shellcheck disable=SC2016 # for the new shell
      got=$(clean "$shell" -c 'bind -l 2>/dev/null | grep -cx accept-line; history -s one; history | wc -l')
      expect 'readline and history' "$got" $'1\n1' ;;
    zsh)
      # shellcheck disable=SC2016 # for the new shell
      got=$(clean "$shell" -fc 'module_path=(); for m in zle complete complist compctl computil zutil parameter stat system \
        datetime zpty terminfo termcap mathfunc regex net/tcp net/socket curses; do
        zmodload zsh/$m || exit; done; echo loaded' 2>&1)
      expect 'modules are in the program' "$got" loaded ;;
  esac
  rm -rf "$tmp"
}

# --- one shell --------------------------------------------------------------

fingerprint() {
  {
    sha256sum "$here/build-shells.sh" "$here/checksums.sha256" "$here/$1"/*.patch | cut -d ' ' -f 1
    printf '%s\n' "$unpatched" "$source" "$cflags" "$ldflags"
    if [[ -f $source ]]; then sum_of "$source"; fi
    if [[ -d $source ]]; then find "$source" -type f -printf '%P %T@ %s\n' | sort; fi
  } | sha256sum | cut -d ' ' -f 1
}

install_shell() {
  local name=$1 file=$2 stage=$3 target
  target=$prefix/libexec/execgate/$name
  mkdir -p "${target%/*}"
  if ! cmp -s "$file" "$target"; then
    cp "$file" "$target.new.$$"
    chmod 755 "$target.new.$$"
    mv -f "$target.new.$$" "$target"
  fi
  if [[ -d $stage/usr/share/zsh/functions && -z $unpatched ]] &&
    ! diff -qr "$stage/usr/share/zsh/functions" "$prefix/share/zsh/functions" >/dev/null 2>&1; then
    mkdir -p "$prefix/share/zsh"
    rm -rf "$prefix/share/zsh/functions"
    cp -R "$stage/usr/share/zsh/functions" "$prefix/share/zsh/functions"
  fi
}

one() {
  local name=$1 label=$1${unpatched:+-unpatched} dir stamp want packages built start=$SECONDS
  dir=$work/$label
  stamp=$dir/stamp
  want=$(fingerprint "$name")
  if [[ -z $refresh && -x $dir/$label && $(cat "$stamp" 2>/dev/null) == "$want $(sum_of "$dir/$label")" ]]; then
    install_shell "$label" "$dir/$label" "$dir/stage"
    say "$label: nothing to do ($(cat "$dir/source")): $prefix/libexec/execgate/$label"
    return
  fi
  mapfile -t packages < <(missing_packages)
  ((${#packages[@]} == 0)) || die "packages that a build needs are missing: ${packages[*]}" \
    "as root: apt-get install ${packages[*]}" "or as root: $me --install-dependencies"
  rm -rf "$dir"
  mkdir -p "$dir"
  get_source "$name" "$dir"
  say "$label: building ($(cat "$dir/source")), output in $dir/*.log"
  static_libs "$dir/lib"
  "build_$name" "$dir"
  cd "$top"
  cp "$built" "$dir/$label"
  strip "$dir/$label"
  if ldd "$dir/$label" 2>/dev/null | grep -Eq 'lib(tinfo|ncurses|readline)'; then
    say "notice: $label needs ncurses as a shared library (no static one was found)"
  fi
  smoke "$name" "$dir/$label"
  install_shell "$label" "$dir/$label" "$dir/stage"
  printf '%s\n' "$want $(sum_of "$dir/$label")" >"$stamp"
  say "$label: built in $((SECONDS - start)) s: $prefix/libexec/execgate/$label"
}

case $what in
  all) one zsh; one bash ;;
  *) one "$what" ;;
esac
