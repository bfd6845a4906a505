#!/bin/sh
# Asks the server for something as its administrator; the body, JSON, is the standard input, so that a password in it is
# in no list of processes:
#   ./admin.sh POST 2.0/mlflow/users/create <<< '{"username": "ada", "password": "..."}'
# MLFLOW_TRACKING_URI is the server, http://127.0.0.1:5000 without it; secrets/admin-password is the password.
set -eu
password=$(cat "$(dirname "$0")/secrets/admin-password")
server=${MLFLOW_TRACKING_URI:-http://127.0.0.1:5000}
body=$(mktemp)
trap 'rm -f "$body"' EXIT
cat >"$body"
# The administrator's password is read from a descriptor for the same reason.
curl --silent --show-error --fail-with-body --request "$1" --header 'Content-Type: application/json' \
  --data "@$body" --config - "$server/api/$2" <<END
user = "${MLFLOW_AUTH_ADMIN_USERNAME:-admin}:$password"
END
echo
