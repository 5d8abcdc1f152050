#!/bin/sh
# A worker in shell, with curl alone: greets whoever jobs of the kind `hello` name.
#   WINDLASS_TOKEN=… examples/http/worker.sh http://127.0.0.1:7878
url=${1:-http://127.0.0.1:7878} worker="shell-$$-$(date +%s)" number=0

# A call whose answer was lost is made again: that does no harm.
call() {
  curl -sS --max-time 40 --retry 9 --retry-all-errors -H "Authorization: Bearer $WINDLASS_TOKEN" \
    -H 'Content-Type: application/json' "$url/v1/$1" -d "$2"
}

while number=$((number + 1)); do
  ask="{\"worker\":\"$worker\",\"request_id\":\"$number\",\"kinds\":[\"hello\"],\"wait\":\"20s\"}"
  answer=$(call lease "$ask") || exit 1
  case $answer in *'],"drain":true}') exit ;; esac
  lease=$(printf %s "$answer" | sed -n 's/.*"lease":"\([^"]*\)".*/\1/p')
  [ "$lease" ] || continue
  payload=$(printf %s "$answer" | sed -n 's/.*"payload":\(.*\),"content_type".*/\1/p')
  call finish "{\"results\":[{\"lease\":\"$lease\",\"outcome\":\"ok\",\"value\":{\"hello\":$payload}}]}"
done
