#!/bin/sh
# Starts a Redis (`redis`) or a sentinel (`sentinel`) of the set redis-0, redis-1, redis-2. Who is primary is what the sentinels
# say; before there is one, it is redis-0.
set -eu
users=/etc/puna/redis
peers="redis-0.redis.puna.svc redis-1.redis.puna.svc redis-2.redis.puna.svc"
me="$(hostname).redis.puna.svc"

ask='import sys, redis
sentinel = redis.Redis(sys.argv[1], 26379, socket_timeout=2, socket_connect_timeout=2, decode_responses=True)
print(sentinel.sentinel_get_master_addr_by_name("puna")[0])'

primary() {
    for peer in $peers; do
        found=$(timeout 5 python3 -c "$ask" "$peer" 2> /dev/null) || continue
        case $found in
            *.redis.puna.svc) echo "$found"; return ;;
        esac
    done
    echo "redis-0.redis.puna.svc"
}

case $1 in
    redis)
        set -- redis-server --dir /data --appendonly yes --appendfsync everysec --maxmemory-policy noeviction \
            --protected-mode no --replica-announce-ip "$me" --min-replicas-to-write 1 --min-replicas-max-lag 5
        at=$(primary)
        [ "$at" = "$me" ] || set -- "$@" --replicaof "$at" 6379
        # From standard input, so that the password is in no command line.
        exec "$@" - <<CONF
aclfile $users/users.acl
masteruser redis
masterauth $(cat $users/redis-password)
CONF
        ;;
    sentinel)
        # A sentinel writes what it learns into its file.
        cat > /tmp/sentinel.conf <<CONF
port 26379
dir /tmp
protected-mode no
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip $me
sentinel monitor puna $(primary) 6379 2
sentinel auth-user puna redis
sentinel auth-pass puna $(cat $users/redis-password)
sentinel down-after-milliseconds puna 3000
sentinel failover-timeout puna 10000
sentinel parallel-syncs puna 1
CONF
        exec redis-server /tmp/sentinel.conf --sentinel
        ;;
    *)
        echo "usage: start.sh redis|sentinel" >&2
        exit 64
        ;;
esac
