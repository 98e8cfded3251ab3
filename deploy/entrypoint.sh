#!/bin/sh
# The image's entry: the first argument is the role, the rest goes to it. exec, so that signals reach the role itself.
set -eu

roles="gateway, scheduler, discovery, host, redis-server, trust, join"
if [ $# -eq 0 ]; then
    echo "puna: which role? One of: $roles" >&2
    exit 64
fi
role=$1
shift
case $role in
    gateway | scheduler | discovery) exec python -m "$role" "$@" ;;
    host) exec python -m runner host "$@" ;;
    trust) # the cluster's authority: certificates of the roles that are named, and users of Redis, in /trust
        [ -d /trust/ca ] || puna trust init --dir /trust
        puna trust redis --dir /trust
        puna trust issue --dir /trust "$@"
        exec puna trust renew --watch --dir /trust
        ;;
    join) # ADDRESS [TOKEN]: the certificate of a host on a machine without the authority, in /etc/puna/trust
        exec puna trust join "$1" --token "${2-}" --watch --dir /etc/puna/trust
        ;;
    redis-server) exec redis-server "$@" ;;
    *)
        echo "puna: unknown role \"$role\". One of: $roles" >&2
        exit 64
        ;;
esac
