/* The steps of a sequence, the order in which they are taken, and rows shared out to threads. */

typedef struct {
    int64_t T, rows;      /* rows: of all steps together */
    const int64_t *sizes; /* sequences at each step, never increasing; NULL: B at every step */
    int B, reverse;
} Steps;

/* A step: where its rows begin, how many there are, and the same of the step before it in the order
 * of the recurrence (none: before_size = 0). */
typedef struct {
    const Steps *steps;
    int64_t t, offset, before_offset;
    int size, before_size, direction, more;
} Walk;

static inline int size_at(const Steps *steps, int64_t t) {
    if (t < 0 || t >= steps->T) return 0;
    return steps->sizes ? (int)steps->sizes[t] : steps->B;
}

static inline void look_around(Walk *at) {
    const int back = at->steps->reverse ? 1 : -1;
    at->more = at->t >= 0 && at->t < at->steps->T;
    at->size = size_at(at->steps, at->t);
    at->before_size = size_at(at->steps, at->t + back);
    at->before_offset =
        !at->before_size ? 0 : back < 0 ? at->offset - at->before_size : at->offset + at->size;
}

/* Begin at the first step in the order of the recurrence, or, for its gradient, at the last. */
static inline Walk walk(const Steps *steps, int backward) {
    Walk at = {.steps = steps, .direction = steps->reverse != backward ? -1 : 1};
    at.t = at.direction > 0 ? 0 : steps->T - 1;
    at.offset = at.direction > 0 ? 0 : steps->rows - size_at(steps, at.t);
    look_around(&at);
    return at;
}

static inline void advance(Walk *at) {
    at->t += at->direction;
    at->offset += at->direction > 0 ? at->size : -size_at(at->steps, at->t);
    look_around(at);
}

/* How many of the rows first, ..., last - 1 there are among `size` rows. */
static inline int rows_between(int first, int last, int size) {
    const int end = size < last ? size : last;
    return end > first ? end - first : 0;
}

typedef int (*Body)(void *job, int first, int last);

typedef struct {
    Body body;
    void *job;
    int first, last, error;
    unsigned control;
    pthread_t thread;
    int started;
} Share;

static void *run_share(void *data) {
    Share *share = data;
    const unsigned control = flush_denormals();
    share->error = share->body(share->job, share->first, share->last);
    restore_denormals(control);
    return NULL;
}

/* Give every thread some of the rows, once for the whole sequence: rows do not depend on one another.
 * Threads are made for each call and joined: nothing outlives it, so that fork is safe. */
static int split(Body body, void *job, const Steps *steps, int threads) {
    Share shares[MAX_THREADS];
    int count = threads < steps->B ? threads : steps->B;
    if (count > MAX_THREADS) count = MAX_THREADS;
    if (count < 1) count = 1;
    /* equal numbers of rows of all steps together, since sequences differ in length */
    int64_t t = steps->T, done = 0;
    int row = 0;
    for (int i = 0; i < count; i++) {
        shares[i] = (Share){.body = body, .job = job, .first = row};
        const int64_t goal = steps->rows * (i + 1) / count;
        while (row < steps->B && (i == count - 1 || done < goal)) {
            while (t > 0 && size_at(steps, t - 1) <= row) t--;
            done += t;
            row++;
        }
        shares[i].last = row;
    }
    for (int i = 1; i < count; i++)
        shares[i].started = !pthread_create(&shares[i].thread, NULL, run_share, &shares[i]);
    run_share(&shares[0]);
    int error = shares[0].error;
    for (int i = 1; i < count; i++) {
        if (shares[i].started)
            pthread_join(shares[i].thread, NULL);
        else
            run_share(&shares[i]); /* no thread to be had: the work is still done */
        if (shares[i].error) error = shares[i].error;
    }
    return error;
}
