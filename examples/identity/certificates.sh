#!/bin/sh
# Makes certificates for a policy service and its gates, signed by a CA of their own:
#
#   certificates.sh DIRECTORY HOST GATE...
#
# HOST is what gates call the service, a DNS name or an IPv4 address; each GATE is a DNS name by which
# rules and audit will know that gate. A CA that is in DIRECTORY already is used again, so that the same
# command renews certificates. Needs OpenSSL 3.
set -eu

if [ $# -lt 2 ]; then
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
directory=$1 host=$2
shift 2
umask 077
mkdir -p "$directory"
cd "$directory"

if ! [ -e ca.key ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 3650 \
        -subj '/CN=execgate CA' -keyout ca.key -out ca.pem
fi

# Signs a certificate for 90 days: the name of its files, and what it is for.
certificate() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc \
        -subj "/CN=$1" -addext "subjectAltName=$2" -keyout "$1.key.new" -out "$1.csr"
    openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -days 90 -copy_extensions copy -out "$1.pem.new"
    rm "$1.csr"
    mv "$1.key.new" "$1.key"
    mv "$1.pem.new" "$1.pem"
}

case $host in
    *[!0-9.]*) certificate "$host" "DNS:$host" ;;
    *) certificate "$host" "IP:$host" ;;
esac
for gate in "$@"; do
    certificate "$gate" "DNS:$gate"
done
