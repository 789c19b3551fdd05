-- name: server
SELECT current_setting('server_version'), current_setting('server_version_num')::int,
       pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean
