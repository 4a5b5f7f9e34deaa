#!/bin/sh
# Installs the Debian packages that the examples need, where they are missing, and says so.
set -eu

missing=

# postgres: for twophase. Debian keeps its programs out of PATH, one folder per version.
has_postgres() {
	command -v initdb >/dev/null && command -v pg_ctl >/dev/null && return
	for folder in /usr/lib/postgresql/*/bin; do
		[ -x "$folder/initdb" ] && [ -x "$folder/pg_ctl" ] && return
	done
	return 1
}
has_postgres || missing="$missing postgresql"
command -v ps >/dev/null || missing="$missing procps"
command -v redis-server >/dev/null || missing="$missing redis-server" # for blockingwait

if [ -z "$missing" ]; then
	echo "examples: all servers are installed"
	exit
fi
if ! command -v apt-get >/dev/null; then
	echo "examples: missing:$missing; this is not Debian, so please install what corresponds" >&2
	exit 1
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "examples: installing$missing"
$sudo apt-get update -qq
# shellcheck disable=SC2086 # a list of names
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
