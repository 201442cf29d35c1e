# Mean of the losses of the last fifth of the steps of a metrics.jsonl; -v steps=N: how many it must have. "nan" when it
# stopped early or a loss is null.
match($0, /"loss":[^,}]*/) {
    loss[++n] = substr($0, RSTART + 7, RLENGTH - 7)
}
END {
    from = n - int(n / 5 > 1 ? n / 5 : 1) + 1
    for (i = from; i <= n; i++) {
        if (loss[i] == "null") n = 0
        sum += loss[i]
    }
    if (n < steps) print "nan"
    else printf "%.8f\n", sum / (n - from + 1)
}
