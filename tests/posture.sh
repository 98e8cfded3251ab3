#!/bin/sh
# Posture of a running cluster: one line for each check, `ok` or `FAIL`; exit status 1 after a FAIL.
#
#   tests/posture.sh up HOME    a cluster that `puna up` runs; OPEN="11434 7601": ports that may be open to others
#
# POSTURE_KEY is a key for clients where the gateway asks for one. A canary prompt is sent, and looked for afterwards.
set -u
failed=0
CANARY="canary-$$-posture-$(date +%s)"
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

status() { # PID FIELD VALUE…: each value of the field in /proc/PID/status is VALUE
    process=$1 field=$2 expected=$3
    line=$(cat "/proc/$process/status" | awk -v field="$field:" '$1 == field { print $2 }')
    [ "$line" = "$expected" ] || { echo "$field is ${line:-not there}, not $expected"; return 1; }
}

no_core() { # PID
    cat "/proc/$1/limits" | awk '/^Max core/ { exit !($5 == 0 && $6 == 0) }'
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

is_confined() { case $1 in "runner serve" | "runner measure" | "runner inspect" | "runner rpc") true ;; *) false ;; esac; }

check_process() { # PID NAME UID
    check "$2: runs as uid $3" status "$1" Uid "$3"
    check "$2: no secret in its environment" nothing secrets_of "$1"
    if is_confined "$2"; then
        check "$2: no core file" no_core "$1"
        check "$2: no new privileges" status "$1" NoNewPrivs 1
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

check_packages() { # PYTHON
    check "lock: every package has a hash" awk '
        /^[a-z0-9].*==/ { if (name && !hashes) { print name; bad = 1 } name = $1; hashes = 0 }
        /--hash=sha256:/ { hashes++ } END { if (name && !hashes) bad = 1; exit bad }' "$ROOT/requirements.lock"
    check "packages: no unknown .pth file" nothing "$1" -c '
import pathlib, site, sys
known = sys.argv[1].split()
print(*(path for folder in site.getsitepackages() for path in pathlib.Path(folder).glob("*.pth") if path.name not in known))
' "$KNOWN_PTH"
}

ask() { # PYTHON URL: send the canary, print the answer's status and all metrics pages that are reached
    "$1" -c '
import json, sys, urllib.request
url, canary, key = sys.argv[1:]
def get(url, body=None):
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=120).read().decode()
get(url + "/api/generate", json.dumps({"model": "demo", "prompt": canary, "stream": False}).encode())
print(get(url + "/metrics"))
nodes = json.loads(get(url + "/puna/v1/nodes"))["nodes"]
for one in [*nodes, *(runner for node in nodes for runner in node.get("runners", []))]:
    address = one.get("metrics_address") or ""
    try:
        print(get(f"http://{address}/metrics") if address else "")
    except OSError:
        pass
' "$2" "$CANARY" "${POSTURE_KEY:-}"
}

check_canary() { # PYTHON URL
    answer=$(ask "$1" "$2" 2>&1)
    check "canary: the prompt was answered" sh -c 'echo "$1" | grep -q "^puna_" || { echo "$1" | tail -n 1; exit 1; }' - "$answer"
    check "canary: not in metrics" nothing sh -c 'echo "$1" | grep -o "$2"' - "$answer" "$CANARY"
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
    check_canary "$python" "http://$(sed -n 's/.*"http_address": "\(.*\)",/\1/p' "$record")"
    # shellcheck disable=SC2086
    check "canary: not in logs, Redis, audit and other files" nothing grep -rlaF "$CANARY" "$home" $audit
}

case ${1:-} in
    up) posture_of_up "${2:?a home, as puna up prints it}" ;;
    *) sed -n '2,6s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
exit $failed
