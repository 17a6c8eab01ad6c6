# Adds what the order lacks, then sends it back to the sink that failed, and to no other.
set -e
vejas dlq edit 1 --set 'customer="Rasa"'
vejas dlq replay --all
