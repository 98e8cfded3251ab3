#!/bin/sh
# Starts a Redis (`redis`) or a sentinel (`sentinel`) of the set redis-0, redis-1, redis-2. Who is primary is what the sentinels
# say; before there is one, it is redis-0.
set -eu
peers="redis-0.redis.puna.svc redis-1.redis.puna.svc redis-2.redis.puna.svc"
me="$(hostname).redis.puna.svc"

primary() {
    for peer in $peers; do
        found=$(timeout 2 redis-cli -h "$peer" -p 26379 --raw sentinel get-master-addr-by-name puna 2>/dev/null | head -n 1) || continue
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
        exec "$@"
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
