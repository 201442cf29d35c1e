# shellcheck shell=sh disable=SC2086,SC2154 # sourced after lib.sh; $tiny is a list of words
# kill_often N: a run that saves after every step, ended by SIGKILL at N random moments, half of them after a save. Every
# start must find the newest folder step-N, believe it, and go on; what comes out must be what the run that was never
# killed gives, bit by bit.

kills_job="--model.dim=48 --model.n_layers=1 --model.n_heads=2 --model.n_kv_heads=1 --moe.num_experts=2 --moe.top_k=1
    --training.seq_len=16 --training.local_batch_size=1 --training.dataset_path=corpus --training.dataset_bytes=300
    --metrics.log_freq=1 --lr_scheduler.warmup_steps=2 --training.steps=30 --job.threads=1"
kills_save="--checkpoint.enable --checkpoint.interval=1 --checkpoint.keep_latest_k=2 --checkpoint.shard_mib=1"

# Steps, losses and gradient norms: what does not depend on the clock.
list_results() { sed 's/,"tokens_per_second.*//; s/,"seconds".*//' "$1/metrics.jsonl"; }

# shellcheck disable=SC2012 # names are ours
newest_step() { ls victim/checkpoint 2>/dev/null | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | tail -n 1; }

# The log of a start: from the newest step that was there, without a complaint.
check_start() {
    has_not out 'damaged|missing|warning'
    if [ -n "$1" ] && grep -q 'Training starts at' out; then has out "Resuming from step $1, "; fi
}

check_end() {
    grep -q 'Training completed' out || fail "the killed run did not end"
    list_results victim >victim/results
    cmp -s victim/results whole/results || fail "the killed run's metrics differ from the whole run's"
    cmp -s victim/checkpoint/step-30/model.safetensors whole/checkpoint/step-30/model.safetensors ||
        fail "the killed run's weights differ from the whole run's"
    ls -a victim/checkpoint >names
    has_not names '^\.(saving|removing)'
    rm -rf victim
    ended=$((ended + 1))
}

# Until the run has saved something, or has ended.
wait_for_save() {
    while kill -0 $job 2>/dev/null && ! grep -q 'Saved a checkpoint' out; do sleep 0.01; done
}

kill_often() {
    expect 0 train $kills_job --checkpoint.enable --job.dump_folder=whole
    list_results whole >whole/results
    seed=${MX8_TEST_SEED:-$$}
    echo "MX8_TEST_SEED=$seed gives these moments again"
    awk -v seed="$seed" -v n="$1" \
        'BEGIN { srand(seed); for (i = 0; i < n; i++) printf "%.3f\n", 0.02 + 0.3 * rand() }' >moments
    killed=0 ended=0 saved=0 inside=0
    while read -r moment; do
        newest=$(newest_step)
        mode=disabled
        [ $((killed % 2)) = 0 ] || mode=async
        "$mx8" train $kills_job $kills_save --checkpoint.async_mode=$mode --job.dump_folder=victim \
            >out 2>err </dev/null &
        job=$!
        [ $((killed % 4)) -lt 2 ] || wait_for_save # on a busy machine a moment may pass before the first step
        sleep "$moment"
        kill -KILL $job 2>/dev/null || true
        code=0
        wait $job 2>/dev/null || code=$?
        case $code in
        0) check_start "$newest" && check_end ;;
        137)
            check_start "$newest"
            [ -z "$(ls -d victim/checkpoint/.saving-* victim/checkpoint/.removing-* 2>/dev/null)" ] ||
                inside=$((inside + 1))
            ;;
        *) fail "exit code $code after kill $killed" ;;
        esac
        [ -z "$newest" ] || saved=$((saved + 1))
        killed=$((killed + 1))
    done <moments
    newest=$(newest_step)
    expect 0 train $kills_job $kills_save --job.dump_folder=victim
    check_start "$newest"
    check_end
    echo "killed $killed times, $inside while saving; $saved starts from a checkpoint, $ended whole runs"
    [ $((4 * saved)) -ge "$killed" ] || fail "most kills came before the first checkpoint: nothing was tested"
}
