#!/usr/bin/env bash
# Build the images with deploy/image.sh and run a pipeline in the functions': image.sh FWATCHDOG PIPELINE_FOLDER.
# FWATCHDOG is of-watchdog, a given program, or without_watchdog.sh; the pipeline, and the project's environment, may come
# after the images are built. Needs root, what deploy/image.sh needs, and iproute2;
# no container engine. The image may have 400 MB. Three containers, ingress, all stages, and one expert alone
# (without torch), each with the memory limit that `smoe pipeline deploy` gives it in a cluster, a read-only root, an unprivileged
# user and a network namespace of its own (of-watchdog's port for metrics is fixed); the pipeline is mounted. Answers
# must equal the whole model's, as many tokens as the expert takes at once are in its call, a call of more tokens than
# the stages take is answered too, and no process is killed. Of the control image, gateway and controller print their help
# as its user. Both images' bills of materials name what they must hold. Everything ends with it.
set -euo pipefail
watchdog=$(realpath "$1") pipeline=$(realpath -m "$2")
root=$(realpath "$(dirname "$0")/../../../..")
python=${PYTHON:-$root/.venv/bin/python}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/pyproject.toml")
work=$(mktemp -d)
names=(stages ingress expert)
cgroups=()
storage=(--root "$work/images" --runroot "$work/run") # and the driver, when deploy/image.sh has chosen one
finish() {
  for name in "${names[@]}"; do ip netns pids "smoe-$name" 2>/dev/null | xargs -r kill -9 || true; done
  for name in "${names[@]}"; do ip netns del "smoe-$name" 2>/dev/null || true; done
  ip link del smoe-bridge 2>/dev/null || true
  for folder in "${cgroups[@]}"; do
    for _ in {1..50}; do ! rmdir "$folder" 2>/dev/null || break; sleep 0.1; done # those killed take a moment to leave
  done
  for name in "${names[@]}"; do umount -R -l "$work/$name" 2>/dev/null || true; done
  buildah "${storage[@]}" rm --all >/dev/null || true
  rm -rf --one-file-system "$work"
}
trap finish EXIT

STORE=$work IMAGES="function control" ARCHIVES=function "$root/deploy/image.sh" "$watchdog" "$work/out"
storage+=(--storage-driver "$(cat "$work/driver")")
size=$(stat -c %s "$work/out/function.tar.gz")
echo "the image has $((size / 1000000)) MB"
[ "$size" -le 400000000 ] || { echo "that is more than 400 MB" >&2; exit 1; }

for _ in {1..2700}; do [ ! -e "$pipeline/pipeline.json" ] || break; sleep 1; done
lists() { # IMAGE PACKAGE...: fail unless the image's bill of materials names each package
  "$python" -c 'import json, sys
with open(sys.argv[1]) as file:
    names = {part["name"].lower() for part in json.load(file)["components"]}
missing = set(sys.argv[2:]) - names
sys.exit(f"{sys.argv[1]} does not name {sorted(missing)}" if missing else 0)' "$work/out/$1.sbom.json" "${@:2}"
}
lists function torch flask
lists control torch uvicorn kubernetes
control=$(buildah "${storage[@]}" from --pull-never "docker.io/smoe/control:$version")
buildah "${storage[@]}" run --isolation chroot "$control" -- python -m gateway --help >/dev/null
buildah "${storage[@]}" run --isolation chroot "$control" -- python -m smoe autoscale --help >/dev/null
buildah "${storage[@]}" rm "$control" >/dev/null
echo "the control image runs gateway and controller"

ip link add smoe-bridge type bridge && ip addr add 10.9.0.1/24 dev smoe-bridge && ip link set smoe-bridge up
number=2
for name in "${names[@]}"; do
  ip netns add "smoe-$name"
  ip link add "smoe-$name" type veth peer name eth0 netns "smoe-$name"
  ip link set "smoe-$name" master smoe-bridge up
  ip -n "smoe-$name" addr add "10.9.0.$number/24" dev eth0
  ip -n "smoe-$name" link set eth0 up
  ip -n "smoe-$name" link set lo up
  number=$((number + 1))
done
limited() { # NAME: make the container's cgroup, with its memory limit
  local folder=/sys/fs/cgroup/smoe-$1 file=memory.max
  [ ! -d /sys/fs/cgroup/memory ] || folder=/sys/fs/cgroup/memory/smoe-$1 file=memory.limit_in_bytes
  if mkdir "$folder" && cgroups+=("$folder") && cat "$work/$1.limit" >"$folder/$file"; then return; fi
  echo "note: this machine sets no memory limits ($folder/$file); the container runs without"
}
killed() { # NAME: how many of the container's processes were killed for memory
  cat /sys/fs/cgroup{/memory,}/smoe-"$1"/memory.{oom_control,events} 2>/dev/null | sed -n 's/^oom_kill //p' || true
}
most_used() { # NAME: MiB that the container's processes had at most
  cat /sys/fs/cgroup{/memory,}/smoe-"$1"/memory.{max_usage_in_bytes,peak} 2>/dev/null | awk '{print int($1 / 2^20)}' || true
}
container() { # NAME, its environment: start it in its namespace as the kubelet does, with /tmp to write to and no more
  local name=$1 made files="$work/$1"
  shift
  made=$(buildah "${storage[@]}" from --pull-never "docker.io/smoe/function:$version")
  mkdir "$files"
  mount --bind "$(buildah "${storage[@]}" mount "$made")" "$files"
  mount -t proc proc "$files/proc"
  mount --bind /dev "$files/dev"
  mount -t tmpfs -o mode=1777 tmp "$files/tmp"
  mkdir -p "$files/var/smoe/pipelines/$(basename "$pipeline")"
  mount --bind -o ro "$pipeline" "$files/var/smoe/pipelines/$(basename "$pipeline")"
  mount -o remount,ro,bind "$files"
  mapfile -t image < <(buildah "${storage[@]}" inspect --format '{{range .OCIv1.Config.Env}}{{println .}}{{end}}' "$made")
  limited "$name"
  (
    for folder in "${cgroups[@]}"; do case $folder in */smoe-"$name") echo $BASHPID >"$folder/cgroup.procs" ;; esac; done
    exec ip netns exec "smoe-$name" chroot --userspec=12000:12000 "$files" /usr/bin/env -i "${image[@]}" "$@" \
      sh -c 'cd /home/app && ! touch . 2>/dev/null && exec fwatchdog'
  ) >"$work/$name.log" 2>&1 &
  disown
}
cd "$root"
"$python" -m tests.contract.gateway.conformance.image_environment "$pipeline" http://10.9.0.2:8080 "$work"
for name in "${names[@]}"; do
  mapfile -t environment <"$work/$name.env"
  container "$name" "${environment[@]}"
done
for host in 2 3 4; do # stages, ingress, expert
  curl -sf --retry 60 --retry-delay 1 --retry-all-errors "http://10.9.0.$host:8080/_/ready" >/dev/null || { tail "$work"/*.log; exit 1; } >&2
done
curl -sf -H 'content-type: application/json' -d '{"inputs": "A container answers."}' http://10.9.0.3:8080/ >"$work/answer.json"
curl -sS --fail-with-body --data-binary "@$work/expert.call" http://10.9.0.4:8080/ -o "$work/expert.reply" || { tail "$work/expert.log"; exit 1; } >&2
"$python" -m tests.contract.gateway.conformance.image_environment --check "$work" "$pipeline"
curl -s -S --fail-with-body -H 'content-type: application/json' -d "@$work/many.json" -o "$work/many.out" http://10.9.0.3:8080/ \
  || { head -c 1000 "$work/many.out"; tail "$work"/*.log; exit 1; } >&2
for name in "${names[@]}"; do
  count=$(killed "$name")
  echo "$name: limit $(($(cat "$work/$name.limit") >> 20)) MiB, most used: $(most_used "$name"), ${count:-no number of} processes killed for memory"
  [ "${count:-0}" = 0 ] || exit 1
done
