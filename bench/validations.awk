# A metrics.jsonl -> lines "name|step|validation loss", and "name|speed|median tokens/s over the steps but the first".
function field(key) {
    if (!match($0, "\"" key "\":[^,}]*")) return ""
    return substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
}
{
    loss = field("validation_loss")
    if (loss != "") print name "|" field("step") "|" loss
    if (NR > 1) speed[NR - 1] = field("tokens_per_second") + 0
}
# The k-th smallest of speed[low .. high], which is partly sorted for it.
function select(k, low, high, i, j, pivot, held) {
    while (low < high) {
        pivot = speed[int((low + high) / 2)]
        i = low
        j = high
        while (i <= j) {
            while (speed[i] < pivot) i++
            while (speed[j] > pivot) j--
            if (i > j) break
            held = speed[i]
            speed[i++] = speed[j]
            speed[j--] = held
        }
        if (k <= j) high = j
        else if (k >= i) low = i
        else return speed[k]
    }
    return speed[k]
}
END {
    if (NR > 1) printf "%s|speed|%.0f\n", name, select(int(NR / 2), 1, NR - 1)
}
