# Checks of baton.v1 by grpcurl: sh checks.sh NAME ...; a line of JSON for each. See ../python/checks.py.
SERVICE=baton.v1.GenerationService
QUESTION='"conversation": {"messages": [{"role": "user", "content": "What is 12 + 30?"}]}'
SUM='{\"type\":\"object\",\"properties\":{\"answer\":{\"type\":\"integer\"}},\"required\":[\"answer\"],\"additionalProperties\":false}'
WEATHER='{\"type\":\"object\",\"properties\":{\"city\":{\"enum\":[\"Paris\",\"Oslo\"]}},\"required\":[\"city\"],\"additionalProperties\":false}'

call() { grpcurl -plaintext "$@" 2>&1; }

# ask LIMIT SAMPLING INPUT [FLAG ...]: generates at temperature 0, and writes what comes, messages and errors
ask() {
  body="{\"model\": \"$BATON_MODEL\", \"sampling\": {\"temperature\": 0, \"max_token_count\": $1$2}, $3}"
  shift 3
  call "$@" -d "$body" "$BATON_GRPC" $SERVICE/Generate
}

text() { sed -n 's/^  "text": "\(.*\)",\{0,1\}$/\1/p' | tr -d '\n'; }
# field NAME: its last value; versions of grpcurl write names as the files do, or in camelCase
field() {
  known=$(echo "$1" | sed 's/_\([a-z]\)/_*[\1\u\1]/g')
  sed -n "s/.*\"$known\": \"\{0,1\}\([^\",]*\).*/\1/p" | tail -n 1
}
expect() { [ "$1" = "$2" ] || wrong="expected $2, got $1"; }
expect_in() { case $2 in *"$1"*) ;; *) wrong="expected $1 in $(printf %s "$2" | tail -c 200)" ;; esac; }

models() { expect "$(call "$BATON_GRPC" $SERVICE/ListModels | field name)" "$BATON_MODEL"; }
conversation() { expect "$(ask 64 '' "$QUESTION" | text)" '12 + 30 = 42'; }
text_input() { expect "$(ask 8 ', "ignore_eos": true' '"text": "What is"' | field completion_token_count)" 8; }
tokens() {
  ids=$(call -d '{"text": "What is"}' "$BATON_GRPC" $SERVICE/Tokenize | sed -n 's/^    \([0-9]*,\{0,1\}\)$/\1/p' | tr -d '\n')
  expect "$(ask 8 '' "\"tokens\": {\"token_ids\": [$ids]}" | text)" "$(ask 8 '' '"text": "What is"' | text)"
}
stream() {
  count=$(ask 48 ', "ignore_eos": true' "$QUESTION" | grep -c '^{')
  [ "$count" -gt 8 ] || wrong="$count messages"
}
usage() {
  told=$(ask 64 '' "$QUESTION")
  expect "$(printf %s "$told" | field completion_token_count)" "$(printf %s "$told" | grep -c '^    [0-9]*,\{0,1\}$')"
  expect_in FINISH_REASON_STOP "$told"
  expect "$(printf %s "$told" | field decode_node_id)" decode-0
}
logprobs() {
  told=$(ask 64 ', "top_logprob_count": 2' "$QUESTION")
  expect "$(printf %s "$told" | field completion_token_count)" "$(printf %s "$told" | grep -c '"alternatives": \[')"
}
stop() {
  told=$(ask 64 '' "$QUESTION, \"stop\": [\"=\"]")
  expect "$(printf %s "$told" | text)" '12 + 30 '
  expect "$(printf %s "$told" | field stop)" '='
}
structured() {
  told=$(ask 300 ", \"structured_output\": {\"json_schema\": \"$SUM\"}" "$QUESTION" | text | tr -d '\\')
  expect "$(printf %s "$told" | sed 's/-\{0,1\}[0-9][0-9]*/N/')" '{"answer":N}'
}
tools() {
  tool="{\"name\": \"get_weather\", \"description\": \"Tells the weather.\", \"parameters\": \"$WEATHER\"}"
  asked="${QUESTION%\}}, \"tools\": [$tool], \"tool_choice\": {\"name\": \"get_weather\"}}"
  told=$(ask 300 '' "$asked")
  expect_in '"name": "get_weather"' "$told"
  expect_in FINISH_REASON_TOOL_CALLS "$told"
}
loop() {
  called='{"id": "call_1", "name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}'
  turns="{\"role\": \"assistant\", \"tool_calls\": [$called]}, {\"role\": \"tool\", \"tool_call_id\": \"call_1\", \"content\": \"sunny\"}"
  expect_in FINISH_REASON "$(ask 64 '' "${QUESTION%]\}}, $turns]}")"
}
errors() {
  told=$(ask 64 ', "temperature": -1' "$QUESTION")
  expect_in InvalidArgument "$told"
  expect_in '"field":"sampling.temperature"' "$told"
  expect_in MODEL_NOT_FOUND "$(call -d "{\"model\": \"gpt\", $QUESTION}" "$BATON_GRPC" $SERVICE/Generate)"
}
deadline() { expect_in DeadlineExceeded "$(ask 3000 ', "ignore_eos": true' "$QUESTION" -max-time 0.3)"; }
health() { expect "$(call -d "{\"service\": \"$SERVICE\"}" "$BATON_GRPC" grpc.health.v1.Health/Check | field status)" SERVING; }
reflection() {
  expect_in $SERVICE "$(call "$BATON_GRPC" list)"
  expect_in 'rpc Generate ( .baton.v1.GenerateRequest ) returns ( stream .baton.v1.GenerateResponse );' \
    "$(call "$BATON_GRPC" describe $SERVICE)"
}
tls_key() {
  secured() { grpcurl -cacert "$BATON_CA" "$@" "$BATON_GRPC_TLS" $SERVICE/ListModels 2>&1; }
  expect "$(secured -H "authorization: Bearer $BATON_KEY" | field name)" "$BATON_MODEL"
  expect_in Unauthenticated "$(secured)"
}
keepalive() { expect "$(ask 64 '' "$QUESTION" -keepalive-time 1 | text)" '12 + 30 = 42'; }
request_id() {
  told=$(ask 64 '' "$QUESTION" -v -H 'x-request-id: shell-1')
  expect_in 'x-request-id: shell-1' "$told"
  expect "$(printf %s "$told" | field request_id)" shell-1
}

for name in "$@"; do
  wrong=
  started=$(date +%s.%N)
  case $name in text) text_input ;; *) $name ;; esac
  wrong=$(printf %s "$wrong" | tr -s '"\\\n\t' '    ')
  printf '{"feature": "%s", "error": "%s", "seconds": %.2f}\n' "$name" "$wrong" "$(echo "$(date +%s.%N) $started" | awk '{print $1 - $2}')"
done
