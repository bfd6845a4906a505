#!/bin/sh
# Makes what MLflow, PostgreSQL and the object store need to trust each other: each a file of secrets/, or of the folder
# that is named. What is there already is kept, so that it may be run again. Nothing is printed.
set -eu
umask 077
folder=${1:-"$(dirname "$0")/secrets"}
mkdir -p "$folder"
# Others cannot enter the folder. Who is in it may read, since each container reads its files as another user.
chmod 700 "$folder"

random() {
  od -An -N "$1" -tx1 /dev/urandom | tr -d ' \n'
}

# Writes its input to a file that is not there yet.
make() {
  [ -e "$folder/$1" ] && return
  cat >"$folder/$1.new"
  chmod 444 "$folder/$1.new"
  mv "$folder/$1.new" "$folder/$1"
}

random 24 | make postgres-password
random 24 | make database-password
random 24 | make admin-password
random 32 | make flask-secret-key
random 10 | make s3-access-key
random 20 | make s3-secret-key

# Who may do what in the store: one identity, and its bucket.
make s3.json <<END
{
  "identities": [
    {
      "name": "mlflow",
      "credentials": [
        {"accessKey": "$(cat "$folder/s3-access-key")", "secretKey": "$(cat "$folder/s3-secret-key")"}
      ],
      "actions": ["Admin:mlflow", "Read:mlflow", "Write:mlflow", "List:mlflow", "Tagging:mlflow"]
    }
  ]
}
END
