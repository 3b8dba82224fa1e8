# Streams an answer from Baton, a JSON object for each message: sh client.sh 127.0.0.1:8001 'What is 12 + 30?'
address=$1
request=$(printf '{"conversation": {"messages": [{"role": "user", "content": "%s"}]},
  "sampling": {"temperature": 0, "max_token_count": 256}}' "$2")

# -plaintext, or TLS with the authority's certificate in BATON_CA
security=${BATON_CA:+-cacert $BATON_CA}
grpcurl ${security:--plaintext} -max-time 60 -H "authorization: Bearer $BATON_KEY" \
  -d "$request" "$address" baton.v1.GenerationService/Generate
