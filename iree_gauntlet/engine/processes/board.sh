# The part of boards.py on the board, which is called by ssh: `sh board.sh WORK ARGUMENTS`.
# It needs a POSIX shell and the commands in REQUIRED; its folder is the board's cache.
REQUIRED='cat df find flock grep head mkdir mv rm sha256sum sleep stat tar tr'
set -u
umask 077
trap '' HUP
cd "${0%/*}" || exit 70

# The bytes that are free for the cache.
print_free() {
    df -Pk . | { read -r _ && read -r _ _ _ blocks _ && echo $((blocks * 1024)); }
}

# The fields of proc(5)'s stat from the third on: state, parent, group, …; the twentieth is the time of the start.
print_stat() {
    line=$(cat "/proc/$1/stat" 2>/dev/null) && echo "${line##*") "}"
}

print_group() {
    # shellcheck disable=SC2046
    set -- $(print_stat "$1")
    echo "${3-}"
}

print_start() {
    # shellcheck disable=SC2046
    set -- $(print_stat "$1")
    echo "${20-}"
}

# The files of /proc and /sys that machine_state.py reads, a line each with its file; of at most 16 CPUs.
print_state() {
    folder=/sys/devices/system/cpu
    grep -sH '' /proc/loadavg /proc/meminfo /proc/self/status /proc/sys/kernel/hostname /proc/sys/kernel/osrelease \
        $folder/cpu[0-9]/cpufreq/scaling_governor $folder/cpu1[0-5]/cpufreq/scaling_governor \
        $folder/cpu[0-9]/cpufreq/scaling_cur_freq $folder/cpu1[0-5]/cpufreq/scaling_cur_freq \
        $folder/cpu[0-9]/thermal_throttle/core_throttle_count $folder/cpu1[0-5]/thermal_throttle/core_throttle_count \
        $folder/intel_pstate/no_turbo $folder/cpufreq/boost $folder/smt/active \
        /sys/class/hwmon/hwmon*/name /sys/class/hwmon/hwmon*/temp*_input \
        /sys/class/thermal/thermal_zone*/type /sys/class/thermal/thermal_zone*/temp \
        /sys/class/power_supply/*/type /sys/class/power_supply/*/scope /sys/class/power_supply/*/online \
        /sys/class/power_supply/*/status
}

# End the processes of a run, whose folder is $1, and remove the folder. The order of `open` and `group` here and in
# `run` lets either this function see the group, or the run see that it is over.
end_run() {
    rm -f "$1/open"
    if [ -f "$1/group" ] && read -r group start < "$1/group"; then
        now=$(print_start "$group")
        # Another process may have the number by now, but no other group has it while a member lives.
        if [ -z "$now" ] || [ "$now" = "$start" ]; then
            kill -s TERM -- "-$group" 2>/dev/null
            tries=0
            while kill -s 0 -- "-$group" 2>/dev/null && [ $tries -lt 50 ]; do
                [ $tries -lt 20 ] || kill -s KILL -- "-$group" 2>/dev/null
                tries=$((tries + 1))
                sleep 0.1 2>/dev/null || sleep 1
            done
        fi
    fi
    rm -rf "$1"
}

work=$1
shift
case $work in
facts)
    printf 'folder %s\nsystem %s\nfree %s\n' "$PWD" "$(uname -sm)" "$(print_free)"
    for name in $REQUIRED; do
        command -v "$name" > /dev/null || printf 'missing %s\n' "$name"
    done
    ;;
state)
    print_state
    grep -sH '' /proc/cpuinfo /proc/stat
    ;;
hold) # RUN OWNER FILES…: the board's lock, a run's folder, and the files that are missing; until the input ends.
    run=$1
    owner=$2
    shift 2
    exec 9>> lock
    until flock -n 9; do
        printf 'waiting %s\n' "$(cat holder 2>/dev/null)" || exit 0
        sleep 0.2 2>/dev/null || sleep 1
    done
    # Whoever was here before is gone.
    for folder in runs/*; do
        [ ! -d "$folder" ] || end_run "$folder"
    done
    rm -f files/*/*.part
    { printf '%s\n' "$owner" > holder && mkdir -p "runs/$run" files && : > "runs/$run/open"; } || exit 28
    for file; do
        if [ -f "files/$file" ]; then touch -c "files/$file"; else printf 'missing %s\n' "$file"; fi
    done
    printf 'held\n'
    # A byte comes at times. If none comes for long, the network is broken, which sshd notices only after hours.
    if timeout 1 true 2>/dev/null; then
        while [ -n "$(timeout 60 head -c 1)" ]; do :; done
    else
        cat > /dev/null
    fi
    end_run "runs/$run"
    ;;
put) # FILE BYTES: a file from the input, whose folder is its SHA-256.
    [ "$(print_free)" -gt "$2" ] || exit 28
    part="files/$1.part"
    mkdir -p "${part%/*}" || exit 28
    if ! cat > "$part"; then
        rm -f "$part"
        exit 28
    fi
    hash=$(sha256sum < "$part")
    if [ "${hash%% *}" != "${1%%/*}" ]; then
        rm -f "$part"
        exit 65
    fi
    chmod 700 "$part"
    sync "$part" 2>/dev/null || sync
    mv "$part" "files/$1"
    ;;
run) # RUN WATCHED PROGRAM ARGUMENTS…
    run=$1
    watched=$2
    shift 2
    cd "runs/$run" || exit 70
    group=$(print_group $$)
    printf '%s %s\n' "$group" "$(print_start "$group")" > group || exit 28
    [ -f open ] || exit 70
    TMPDIR=$PWD
    export TMPDIR
    # The counters of the CPUs come last, and first again, so that reading the state does not count.
    [ -z "$watched" ] || { print_state; grep -sH '' /proc/stat; } > before
    times > times.before
    read -r began _ < /proc/uptime
    "$@"
    code=$?
    read -r ended _ < /proc/uptime
    times > times.after
    [ -z "$watched" ] || { grep -sH '' /proc/stat; print_state; } > after
    printf 'code %s\nbegan %s\nended %s\n' "$code" "$began" "$ended" > status
    rm -f group
    exit "$code"
    ;;
fetch) # RUN FILES…: those files of a run that exist, as a tar archive.
    cd "runs/$1" || exit 70
    shift
    for file; do
        shift
        [ ! -f "$file" ] || set -- "$@" "$file"
    done
    exec tar -cf - "$@"
    ;;
list)
    [ ! -d files ] || find files -type f -exec stat -c '%s %Y %n' {} +
    ;;
remove) # FOLDERS…: files that no run uses now.
    exec 9>> lock
    flock -n 9 || exit 75
    for folder; do
        rm -rf "files/$folder"
    done
    ;;
esac
