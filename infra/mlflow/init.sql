-- Run once by PostgreSQL's superuser, with psql: a role that owns MLflow's two databases and nothing else.
-- The role's password is in the file that MLFLOW_DATABASE_PASSWORD_FILE names.
\set ON_ERROR_STOP on
\set password `cat "$MLFLOW_DATABASE_PASSWORD_FILE"`
CREATE ROLE mlflow LOGIN PASSWORD :'password';
CREATE DATABASE mlflow OWNER mlflow;
CREATE DATABASE mlflow_auth OWNER mlflow;
REVOKE ALL ON DATABASE mlflow, mlflow_auth FROM PUBLIC;
