#!/usr/bin/env bash
# A session of the real faas-cli against this gateway with the committed stack.yml: faas_cli.sh FAAS_CLI.
# FAAS_CLI is a given program. Each step has the exit status and a piece of the output that it must give. Ends with the
# number of steps that did, and everything it started ends with it.
set -euo pipefail
cli=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
root=$(realpath "$here/../../../..")
smoe=${SMOE:-$root/.venv/bin/smoe}
work=$(mktemp -d)
export OPENFAAS_CONFIG=$work/openfaas OMP_NUM_THREADS=1 CI=false
url=http://127.0.0.1:18080
passed=0 failed=0
trap '"$smoe" down --state "$work/state" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT

step() { # STATUS PATTERN faas-cli's arguments…
  local wanted=$1 pattern=$2 status=0 output
  shift 2
  output=$(timeout "${LIMIT_S:-60}" "$cli" "$@" --gateway "$url" 2>&1 </dev/stdin) || status=$?
  if [ "$status" = "$wanted" ] && grep -qE -- "$pattern" <<<"$output"; then
    passed=$((passed + 1))
    echo "ok    faas-cli $*"
  else
    failed=$((failed + 1))
    printf 'FAIL  faas-cli %s\n      status %s, wanted %s and /%s/:\n%s\n' \
      "$*" "$status" "$wanted" "$pattern" "$(head -c 2000 <<<"$output")"
  fi
}

cd "$work" # faas-cli takes up any stack.yml of its folder
"$smoe" up minilm --state "$work/state" --port 18080 --metrics-port 18082 >/dev/null
"$smoe" pipeline remove minilm --state "$work/state" >/dev/null

step 1 'username or password is incorrect' login --username admin --password wrong
step 1 'Unauthorized access' list
step 0 'credentials saved' login --username admin --password-stdin <"$work/state/secrets/basic-auth-password"
step 0 'Function.*Invocations.*Replicas' list
step 0 'name: +smoe-process' version --warn-update=false
step 0 'gateway is ready' ready
step 0 'openfaas-fn' namespace list
step 0 'Name: +openfaas-fn' namespace get openfaas-fn
step 1 '405|one namespace' namespace create other

step 0 '202 Accepted' secret create api-key --from-literal s3cret
step 0 'already exists' secret create api-key --from-literal s3cret
step 0 'api-key' secret list
step 0 '202 Accepted' secret update api-key --from-literal newer

step 0 '202 Accepted' secret create dotted.key --from-literal s3cret
step 0 'Removed' secret remove dotted.key

step 0 'minilm-expert-5-3' deploy -f "$root/stack.yml"
step 0 'minilm is ready' ready minilm
step 0 'minilm-expert-0-0.*smoe/function.*1' list --verbose
step 0 'Available Replicas: 1' describe minilm-expert-0-0
step 1 'No such function' describe nobody
step 0 'embeddings|"shape"' invoke minilm --content-type application/json <<<'{"inputs": "The cat sat on the mat."}'
step 1 '400' invoke minilm --content-type application/json <<<'{"wrong": 1}'
step 1 '404' invoke nobody <<<''
step 0 'submitted asynchronously' invoke minilm --async --content-type application/json <<<'{"inputs": "a"}'
step 1 'no function nobody' logs nobody --tail=false
step 0 '202 Accepted' deploy -f "$root/stack.yml" --filter 'minilm-segment-0'
step 0 '202 Accepted' deploy -f "$root/stack.yml" --filter 'minilm-segment-0' --update=false --replace
step 0 'is ready' ready minilm-segment-0
step 0 'embeddings|"shape"' invoke minilm --content-type application/json <<<'{"inputs": "Again."}'

step 0 '202 Accepted' deploy --name upper --image alpine --fprocess 'tr a-z A-Z' --label com.openfaas.scale.min=2
step 0 'is ready' ready upper
step 0 'Replicas: +2' describe upper
step 0 '^HELLO' invoke upper <<<hello
step 0 'Forking fprocess' logs upper --tail=false
LIMIT_S=3 step 124 'Forking fprocess' logs upper # followed until the time is over
step 0 '202 Accepted' deploy --name reader --image alpine --fprocess 'cat /var/openfaas/secrets/api-key' --secret api-key
step 0 'is ready' ready reader
step 0 '^newer' invoke reader </dev/null
step 1 'no such|not exist' deploy --name other --image alpine --fprocess cat --secret absent
step 1 'not known to this gateway' deploy --name other --image alpine
step 1 'stops no idle functions' deploy --name other --image alpine --fprocess cat --label com.openfaas.scale.zero=true
step 1 'is not allowed' deploy --name Bad_Name --image alpine --fprocess cat

step 0 'Deleting: upper' remove upper
step 1 'No existing function' remove upper
step 0 'Deleting: reader' remove reader
step 0 'Removed' secret remove api-key
step 1 'Unable to find secret' secret remove api-key
step 0 'Deleting: minilm-segment-6' remove -f "$root/stack.yml"
step 0 'Replicas *$' list

echo "{\"steps\": $((passed + failed)), \"passed\": $passed, \"failed\": $failed}"
[ "$failed" = 0 ]
