#!/bin/sh
# Posture of a running cluster: one line for each check, `ok` or `FAIL`; exit status 1 after a FAIL.
#
#   tests/posture.sh up HOME           a cluster that `puna up` runs
#   tests/posture.sh compose PROJECT   containers of docker-compose.yml, as root; DOCKER_HOST as docker reads it
#
# OPEN="11434 7601": ports that may be open to others. POSTURE_KEY is a key for clients where the gateway asks for one.
# A canary prompt is sent, and looked for afterwards.
set -u
failed=0
STARTED=$(date +%s)
CANARY="canary-$$-posture-$STARTED"
ROOT=$(dirname "$(dirname "$(realpath "$0")")")
KNOWN_PTH="_editable_impl_puna.pth distutils-precedence.pth"

# check WHAT COMMAND…: the command's status decides; what it prints is shown after a FAIL.
check() {
    what=$1
    shift
    if said=$("$@" 2>&1); then
        echo "ok   $what"
    else
        echo "FAIL $what${said:+: $(echo "$said" | head -n 3 | tr '\n' ' ')}"
        failed=1
    fi
}

nothing() { # prints, and fails if there is anything to print
    found=$("$@" 2>/dev/null)
    [ -z "$found" ] || { echo "$found"; return 1; }
}

is() { # VALUE EXPECTED
    [ "$1" = "$2" ] || { echo "$1, not $2"; return 1; }
}

status() { # PID FIELD VALUE: the first value of the field in /proc/PID/status is VALUE
    process=$1 field=$2 expected=$3
    line=$(cat "/proc/$process/status" | awk -v field="$field:" '$1 == field { print $2 }')
    is "$field is ${line:-not there}" "$field is $expected"
}

no_core() { # PID: 1 means none, also to a program in core_pattern
    cat "/proc/$1/limits" | awk '/^Max core/ { exit !($5 <= 1 && $6 <= 1) }'
}

few_capabilities() { # PID: none, or that of root to read files of another user
    cat "/proc/$1/status" | awk '/^Cap(Prm|Eff):/ && $2 != "0000000000000000" && $2 != "0000000000000004" { bad = 1; print }
        END { exit bad }'
}

secrets_of() { # PID: names of variables that hold a secret
    cat "/proc/$1/environ" | tr '\0' '\n' | grep -aE \
        -e '^[A-Z_]*(PASSWORD|SECRET|TOKEN|API_KEY|PEPPER|PRIVATE_KEY)=.' -e '=[a-z]+://[^/@]*:[^/@]+@' | sed 's/=.*//'
}

word_of() { # PID: what it is, from its command line
    cat "/proc/$1/cmdline" | tr '\0' '\n' | awk '
        $0 == "-m" { getline; name = $0; if (name == "runner") { getline; name = name " " $0 }; print name; found = 1; exit }
        NR == 1 { first = $0 } END { if (!found) { sub(" .*", "", first); sub(".*/", "", first); print first } }'
}

is_confined() { case $1 in "runner serve" | "runner measure" | "runner inspect" | "runner probe" | "runner rpc") true ;; *) false ;; esac; }

user_of() { # PID UID: of a runner that is a user of its own, and of what it starts; else that of all processes
    for process in "$1" "$(awk '/^PPid:/ { print $2 }' "/proc/$1/status")"; do
        tr '\0' '\n' <"/proc/$process/cmdline" | grep -qx -e --own-user && { echo $((0x7E000000 + process)); return; }
    done
    echo "$2"
}

check_process() { # PID NAME UID
    own=$(user_of "$1" "$3")
    check "$2: runs as uid $own" status "$1" Uid "$own"
    check "$2: no secret in its environment" nothing secrets_of "$1"
    if is_confined "$2"; then
        check "$2: no core file" no_core "$1"
        check "$2: no new privileges" status "$1" NoNewPrivs 1
        check "$2: no capability but to read files" few_capabilities "$1"
        # Drivers of GPUs connect to sockets: there the filter is left out (docs/security.md).
        [ -e /dev/nvidiactl ] || [ -e /dev/kfd ] || check "$2: system calls are filtered" status "$1" Seccomp 2
    fi
}

check_landlock() {
    if [ -r /sys/kernel/security/lsm ]; then
        check "kernel: has Landlock" grep -q landlock /sys/kernel/security/lsm
    else
        echo "-    kernel: whether it has Landlock cannot be seen here (puna doctor)"
    fi
}

check_packages() { # PYTHON…: the command that starts it
    check "lock: every package has a hash" awk '
        /^[a-z0-9].*==/ { if (name && !hashes) { print name; bad = 1 } name = $1; hashes = 0 }
        /--hash=sha256:/ { hashes++ } END { if (name && !hashes) bad = 1; exit bad }' "$ROOT/requirements.lock"
    check "packages: no unknown .pth file" nothing "$@" -c '
import pathlib, site, sys
known = sys.argv[1].split()
print(*(path for folder in site.getsitepackages() for path in pathlib.Path(folder).glob("*.pth") if path.name not in known))
' "$KNOWN_PTH"
}

# Sends the canary; prints all metrics pages, and `unread` before what says why one was not.
ASK='
import json, os, ssl, sys, urllib.request
url, canary, trust, *pages = sys.argv[1:]
key, context, scheme = os.environ.get("POSTURE_KEY"), None, "https://" if trust else "http://"
if trust:
    context = ssl._create_unverified_context()
    context.load_cert_chain(trust + "/tls.crt", trust + "/tls.key")
def get(url, body=None):
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=120, context=context).read().decode()
get(url + "/api/generate", json.dumps({"model": "demo", "prompt": canary, "stream": False}).encode())
nodes = json.loads(get(url + "/puna/v1/nodes"))["nodes"]
found = [*nodes, *(runner for node in nodes for runner in node.get("runners", []) if runner["state"] != "error")]
addresses = filter(None, (one.get("metrics_address") for one in found))
for page in [*pages, *(scheme + address + "/metrics" for address in addresses)]:
    try:
        print(get(page))
    except OSError as error:
        print("unread", page, error)
'

# Functions, not commands: a page may be longer than an argument.
has_metrics() { echo "$1" | grep -q "^puna_" || { echo "$1" | tail -n 1; return 1; }; }
unread_pages() { echo "$1" | grep "^unread"; }
found_in() { echo "$1" | grep -o "$2"; }

check_canary() { # ANSWER, as ASK printed it
    check "canary: the prompt was answered" has_metrics "$1"
    check "canary: every metrics page was read" nothing unread_pages "$1"
    check "canary: not in metrics" nothing found_in "$1" "$CANARY"
}

own_listeners() { # PID…: ports that these listen on beyond loopback and that are not in OPEN
    sockets=$(for process; do ls -l "/proc/$process/fd" 2>/dev/null; done | sed -n 's/.*socket:\[\([0-9]*\)\]$/\1/p' | tr '\n' ' ')
    cat "/proc/$1/net/tcp" "/proc/$1/net/tcp6" 2>/dev/null | awk -v own=" $sockets" '
        { private = $2 ~ /^(0000000000000000FFFF0000)?......7F:/ || $2 ~ /^00000000000000000000000001000000:/ }
        $4 == "0A" && !private && index(own, " " $10 " ") { sub(/.*:/, "", $2); print $2 }' | sort -u | while read -r port; do
        port=$(printf %d "0x$port")
        case " ${OPEN:-} " in *" $port "*) ;; *) echo "port $port" ;; esac
    done
}

setting() { # NAME PID…: its values in these processes
    name=$1
    shift
    for process; do tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | sed -n "s/^$name=//p"; done | sort -u
}

open_files() { # HOME PLACE…: secrets and sockets that other users can open
    find -L "$@" \( -type s -o -type f \( -name '*.key' -o -name '*pepper*' -o -name 'keys*' -o -name 'audit*' \) \) -perm /077
    find "$1/run" "$1/logs" "$1/redis" "$1/runners" "$1/cache" -maxdepth 0 -perm /077
}

family() { # PID: it and all that descend from it
    echo "$1"
    for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do family "$child"; done
}

posture_of_up() { # HOME
    home=$(realpath "$1")
    record="$home/run/puna.json"
    [ -r "$record" ] || { echo "FAIL no cluster runs in $home"; exit 1; }
    processes=$(family "$(sed -n '1,3s/^ "pid": \(.*\),/\1/p' "$record")")
    owner=$(stat -c %u "$home")
    for process in $processes; do
        [ -r "/proc/$process/cmdline" ] && check_process "$process" "$(word_of "$process")" "$owner"
    done
    check_landlock
    # shellcheck disable=SC2086  # numbers, and paths of settings
    check "listeners: none beyond loopback but ${OPEN:-none}" nothing own_listeners $processes
    audit=$(setting PUNA_AUDIT_LOG $processes)
    # shellcheck disable=SC2086
    places="$(setting PUNA_TRUST $processes) $(setting PUNA_API_KEYS_FILE $processes) $audit"
    # shellcheck disable=SC2086
    check "files: secrets and sockets are closed to other users" nothing open_files "$home" $places
    python=$(for process in $processes; do
        [ "$(word_of "$process")" = gateway ] && tr '\0' '\n' <"/proc/$process/cmdline" | head -n 1
    done)
    check_packages "$python"
    url="http://$(sed -n 's/.*"http_address": "\(.*\)",/\1/p' "$record")"
    check_canary "$("$python" -c "$ASK" "$url" "$CANARY" "" "$url/metrics" 2>&1)"
    # shellcheck disable=SC2086
    check "canary: not in logs, Redis, audit and other files" nothing grep -rlaF "$CANARY" "$home" $audit
}

of() { # CONTAINER FORMAT: what the engine says of it
    docker inspect --format "$2" "$1"
}

check_contained() { # PID NAME UID GROUP: a process of a container
    check_process "$1" "$2" "$3"
    check "$2: runs in group $4" status "$1" Gid "$4"
    for kind in Inh Prm Eff Bnd Amb; do
        check "$2: has no capability (Cap$kind)" status "$1" "Cap$kind" 0000000000000000
    done
    check "$2: no new privileges" status "$1" NoNewPrivs 1
    check "$2: system calls are filtered" status "$1" Seccomp 2
}

own_filter() { # PID: it has a filter beside that of its container
    awk '$1 == "Seccomp_filters:" { exit !($2 > 1) }' "/proc/$1/status"
}

bound_beyond_loopback() { # CONTAINER: ports that other machines reach, but those in OPEN
    of "$1" '{{range $port, $all := .HostConfig.PortBindings}}{{range $all}}{{.HostIp}} {{$port}}{{"\n"}}{{end}}{{end}}' |
        while read -r address port; do
            case "$address $port" in "" | "127."* | "::1 "*) continue ;; esac
            case " ${OPEN:-} " in *" ${port%/*} "*) ;; *) echo "$address $port" ;; esac
        done
}

keys_within() { # PID SERVICE: private keys that are not of the role itself
    find "/proc/$1/root/etc/puna" "/proc/$1/root/trust" -name '*.key' | sed "s|/proc/$1/root||" |
        grep -v -x -e /etc/puna/trust/tls.key -e /etc/puna/tls/tls.key
}

check_container() { # CONTAINER SERVICE
    pid=$(of "$1" '{{.State.Pid}}') user=$(of "$1" '{{.Config.User}}')
    check "$2: has a user that is not root" sh -c 'case $1 in "" | 0 | 0:* | root*) echo "user is ${1:-root}"; exit 1 ;; esac' - "$user"
    check "$2: cannot write to its image" is "read-only: $(of "$1" '{{.HostConfig.ReadonlyRootfs}}')" "read-only: true"
    check "$2: is not privileged" is "privileged: $(of "$1" '{{.HostConfig.Privileged}}')" "privileged: false"
    check "$2: memory is limited" sh -c '[ "$1" -gt 0 ]' - "$(of "$1" '{{.HostConfig.Memory}}')"
    check "$2: processes are limited" sh -c '[ "$1" -gt 0 ] 2>/dev/null' - "$(of "$1" '{{.HostConfig.PidsLimit}}')"
    check "$2: no socket of the engine, no place of the machine's own" nothing sh -c 'echo "$1" | grep -E "docker.sock|^/(proc|sys|dev|etc|root|home|var/run|run)?$"' - "$(of "$1" '{{range .Mounts}}{{.Source}}{{"\n"}}{{end}}')"
    check "$2: nothing is published beyond loopback but ${OPEN:-none}" nothing bound_beyond_loopback "$1"
    [ "$2" = trust ] || check "$2: no key of another role" nothing keys_within "$pid"
    for process in $(family "$pid"); do
        [ -r "/proc/$process/cmdline" ] || continue
        word=$(word_of "$process")
        check_contained "$process" "$2: $word" "${user%:*}" "${user#*:}"
        is_confined "$word" || continue
        check "$2: $word: no core file" no_core "$process"
        [ -e /dev/nvidiactl ] || [ -e /dev/kfd ] || check "$2: $word: has a filter of its own" own_filter "$process"
    done
}

readable_to() { # UID GROUP PLACE…: secrets there that a process of this user can read
    uid=$1 group=$2
    shift 2
    [ $# -eq 0 ] || find "$@" -xdev -type f -size +0 \( -name '*.key' -o -name '*pepper*' -o -name 'keys*.json' -o -name 'redis-password' \) \
        \( -perm -004 -o -uid "$uid" -perm -400 -o -gid "$group" -perm -040 \)
}

volumes_of_others() { # CONTAINER CONTAINER…: places of volumes that containers of other roles have, and the first has not
    own=$(of "$1" '{{range .Mounts}}{{.Source}}{{"\n"}}{{end}}') role=$(role_of "$1")
    shift
    for other; do
        # What trust has below its own volume, it has for the other roles.
        [ "$(role_of "$other")" = "$role" ] ||
            of "$other" '{{range .Mounts}}{{if eq .Type "volume"}}{{.Source}} {{.Destination}}{{"\n"}}{{end}}{{end}}' |
            sed -e '/ \/trust\//d' -e 's/ .*//'
    done | sort -u | grep -v -x -F "$own"
}

role_of() { # CONTAINER: its service, without the number or kind of a host
    of "$1" '{{index .Config.Labels "com.docker.compose.service"}}' | sed 's/-.*//'
}

changed_files() { # FOLDER…: that hold the canary
    find "$@" -xdev -type f -newermt "@$((STARTED - 1))" -exec grep -laF "$CANARY" {} +
}

check_images() { # CONTAINER…: a tag can be moved to another image; one that was built here has no digest
    tagged=$(for container; do of "$container" '{{.Config.Image}}'; done | sort -u | grep -v '@sha256:[0-9a-f]\{64\}$')
    if [ -z "$tagged" ]; then
        echo "ok   images: each is named by its digest"
    else
        echo "-    images: not named by digests (deploy/README.md, Pinning): $(echo $tagged)"
    fi
}

posture_of_compose() { # PROJECT
    containers=$(docker ps --quiet --filter "label=com.docker.compose.project=$1")
    [ -n "$containers" ] || { echo "FAIL no container of the project $1 runs"; exit 1; }
    places="" gateway="" pages=""
    for container in $containers; do
        service=$(of "$container" '{{index .Config.Labels "com.docker.compose.service"}}')
        check_container "$container" "$service"
        places="$places $(of "$container" '{{range .Mounts}}{{.Source}} {{end}}') /proc/$(of "$container" '{{.State.Pid}}')/root/tmp"
        case $service in
            gateway | scheduler | discovery) pages="$pages https://$service:9100/metrics" ;;
        esac
        [ "$service" != gateway ] || gateway=$container
        user=$(of "$container" '{{.Config.User}}')
        # shellcheck disable=SC2046,SC2086  # paths of volumes, identifiers of containers
        check "$service: cannot read secrets of other roles" nothing readable_to "${user%:*}" "${user#*:}" \
            $(volumes_of_others "$container" $containers)
    done
    check_landlock
    # shellcheck disable=SC2086  # identifiers of containers
    check_images $containers
    check "networks: Redis has no way out" is "internal: $(docker network inspect --format '{{.Internal}}' "$1_control")" "internal: true"
    # Empty files are the places of mounts.
    # shellcheck disable=SC2086  # paths of volumes
    check "files: secrets are closed to other users" nothing find $places -xdev -type f -size +0 \
        \( -name '*.key' -o -name '*pepper*' -o -name 'keys*.json' -o -name 'redis-password' \) -perm /007
    check_packages docker exec "$gateway" python
    scheme=http
    of "$gateway" '{{.Config.Env}}' | grep -q PUNA_TLS_CERT= && scheme=https
    # As Prometheus: a container in its network, with its certificate.
    # shellcheck disable=SC2086
    check_canary "$(docker run --rm --user 65534:10007 --network "$1_monitoring" --volume "$1_trust-metrics:/etc/puna/trust:ro" --env POSTURE_KEY \
        --read-only --cap-drop ALL --entrypoint python "$(of "$gateway" '{{.Config.Image}}')" \
        -c "$ASK" "$scheme://gateway:11434" "$CANARY" /etc/puna/trust $pages 2>&1)"
    # shellcheck disable=SC2086
    check "canary: not in files of containers" nothing changed_files $places
    for container in $containers; do
        check "canary: not in the log of $(of "$container" '{{.Name}}')" nothing sh -c 'docker logs "$1" 2>&1 | grep -F "$2"' - "$container" "$CANARY"
    done
}

case ${1:-} in
    up) posture_of_up "${2:?a home, as puna up prints it}" ;;
    compose) posture_of_compose "${2:?the name of a project of compose}" ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
exit $failed
