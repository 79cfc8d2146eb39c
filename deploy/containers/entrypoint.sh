#!/bin/sh
# Entry point of the image: `quorumd` with these arguments. Before `start`, a directory without
# meta.properties is formatted, as QUORUMD_FORMAT says:
#
#   join       (default) for an existing quorum: the node copies the log and observes until a command
#              makes it a voter. A volume that replaces a lost one has to join like this.
#   bootstrap  for the first day of a new quorum. The container formats and ends; it never starts a
#              node, so that the value cannot stay with a service and make a replaced volume vote.
set -eu

how=${QUORUMD_FORMAT:-join}
directory=${QUORUMD_STORAGE_DIR:?names the directory of the node, such as /var/lib/quorumd}
unset QUORUMD_FORMAT

say() {
    echo "quorumd-entrypoint: $*" >&2
}

if [ "${1:-start}" = start ]; then
    case "$how" in
    bootstrap)
        if [ -e "$directory/meta.properties" ]; then
            say "$directory is formatted already and was left as it is. QUORUMD_FORMAT=bootstrap is for" \
                "the first day only: remove it to start the node."
            exit 2
        fi
        quorumd format --bootstrap
        say "now start the node without QUORUMD_FORMAT=bootstrap, once all first voters are formatted."
        exit 0
        ;;
    join)
        if [ ! -e "$directory/meta.properties" ]; then
            quorumd format
            say "$directory was empty: this node joins a quorum that exists, and observes until" \
                "\`quorumctl replace-voter\` or \`quorumctl add-voter\` gives it a vote. If this is the" \
                "first day of a new quorum, remove the volume and begin with QUORUMD_FORMAT=bootstrap."
        fi
        ;;
    *)
        say "QUORUMD_FORMAT is '$how': it has to be join (the default) or bootstrap."
        exit 2
        ;;
    esac
fi

exec quorumd "${@:-start}"
