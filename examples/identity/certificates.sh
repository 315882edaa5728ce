#!/bin/sh
# Makes certificates for a policy service and its gates, signed by a CA of their own:
#
#   certificates.sh DIRECTORY HOST GATE...
#
# HOST is what gates call the service, a DNS name or an IPv4 address; each GATE is a DNS name by which
# rules and audit will know that gate. A CA that is in DIRECTORY already is used again, so that the same
# command renews certificates: what is replaced keeps its owner, group and mode. Needs OpenSSL 3.
set -eu

if [ $# -lt 2 ]; then
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
directory=$1 host=$2
shift 2
# Certificates are for everybody, keys for whoever makes them.
(umask 022 && mkdir -p "$directory")
umask 077
cd "$directory"

# Puts NAME.new in the place of NAME, for the same readers; where there is no NAME yet, with a mode: NAME MODE.
place() {
    if [ -e "$1" ]; then
        # First the owner: the mode is for no other.
        chown --reference="$1" "$1.new"
        chmod --reference="$1" "$1.new"
    else
        chmod "$2" "$1.new"
    fi
    mv "$1.new" "$1"
}

if ! [ -e ca.key ]; then
    if [ -e ca.pem ]; then
        echo "$0: $directory has ca.pem without ca.key: bring the key to renew, or remove ca.pem to begin anew" >&2
        exit 1
    fi
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 3650 \
        -subj '/CN=execgate CA' -keyout ca.key.new -out ca.pem.new
    place ca.pem 644
    place ca.key 600
fi

# Signs a certificate for 90 days: the name of its files, and what it is for.
certificate() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc \
        -subj "/CN=$1" -addext "subjectAltName=$2" -keyout "$1.key.new" -out "$1.csr"
    openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -days 90 -copy_extensions copy -out "$1.pem.new"
    rm "$1.csr"
    place "$1.key" 600
    place "$1.pem" 644
}

case $host in
    *[!0-9.]*) certificate "$host" "DNS:$host" ;;
    *) certificate "$host" "IP:$host" ;;
esac
for gate in "$@"; do
    certificate "$gate" "DNS:$gate"
done
