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

/* How many rows of a step go on from the step before it; the others begin here. */
static inline int kept_rows(const Walk *at) {
    return at->size < at->before_size ? at->size : at->before_size;
}

/* How many of the rows first, ..., last - 1 there are among `size` rows. */
static inline int rows_between(int first, int last, int size) {
    const int end = size < last ? size : last;
    return end > first ? end - first : 0;
}

/* Steps in the order of a walk that lie next to one another: rows offset, ..., offset + rows - 1. */
typedef struct {
    int64_t offset;
    int rows, steps;
} Chunk;

/* The steps from here on that have at least `goal` rows together, or all that are left. */
static inline Chunk next_chunk(Walk at, int goal) {
    Chunk chunk = {.offset = at.offset};
    for (; at.more && chunk.rows < goal; advance(&at)) {
        if (at.offset < chunk.offset) chunk.offset = at.offset;
        chunk.rows += at.size;
        chunk.steps++;
    }
    return chunk;
}

/* The rows of one thread. */
typedef struct {
    struct Team *team;
    int index, first, last;
} Share;

typedef int (*Body)(void *job, const Share *share);

/* Threads that run one sequence. They are made for each call and joined: nothing outlives it, so that
 * fork is safe. */
typedef struct Team {
    Body body;
    void *job;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int count, waiting, error; /* count is 0 until all threads that can be had are there */
    unsigned round;
    Share shares[MAX_THREADS];
} Team;

/* Wait for all threads of the team. */
static void meet(Team *team) {
    if (team->count == 1) return;
    pthread_mutex_lock(&team->lock);
    const unsigned round = team->round;
    if (++team->waiting == team->count) {
        team->waiting = 0;
        team->round++;
        pthread_cond_broadcast(&team->changed);
    }
    while (team->round == round) pthread_cond_wait(&team->changed, &team->lock);
    pthread_mutex_unlock(&team->lock);
}

static void report(Team *team, int error) {
    if (!error) return;
    pthread_mutex_lock(&team->lock);
    team->error = error;
    pthread_mutex_unlock(&team->lock);
}

/* Whether any thread of the team has an error: before they meet again, all go on or none. */
static int agree(Team *team, int error) {
    report(team, error);
    meet(team);
    return team->error;
}

static void run_share(const Share *share) {
    Team *team = share->team;
    const unsigned control = flush_denormals();
    report(team, team->body(team->job, share));
    restore_denormals(control);
}

static void *enter_team(void *data) {
    const Share *share = data;
    Team *team = share->team;
    pthread_mutex_lock(&team->lock);
    while (!team->count) pthread_cond_wait(&team->changed, &team->lock);
    pthread_mutex_unlock(&team->lock);
    run_share(share);
    return NULL;
}

static inline int most_threads(const Steps *steps, int threads) {
    const int count = threads < steps->B ? threads : steps->B;
    return count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
}

/* Give every thread some of the rows, once for the whole sequence: rows do not depend on one another.
 * Where fewer threads can be had than asked for, they take all the rows. */
static int split(Body body, void *job, const Steps *steps, int threads) {
    Team team = {.body = body, .job = job};
    pthread_t workers[MAX_THREADS];
    int count = 1;
    pthread_mutex_init(&team.lock, NULL);
    pthread_cond_init(&team.changed, NULL);
    team.shares[0].team = &team;
    for (; count < most_threads(steps, threads); count++) {
        team.shares[count].team = &team;
        if (pthread_create(&workers[count], NULL, enter_team, &team.shares[count])) break;
    }
    /* equal numbers of rows of all steps together, since sequences differ in length */
    int64_t t = steps->T, done = 0;
    int row = 0;
    for (int i = 0; i < count; i++) {
        Share *share = &team.shares[i];
        share->index = i;
        share->first = row;
        const int64_t goal = steps->rows * (i + 1) / count;
        while (row < steps->B && (i == count - 1 || done < goal)) {
            while (t > 0 && size_at(steps, t - 1) <= row) t--;
            done += t;
            row++;
        }
        share->last = row;
    }
    pthread_mutex_lock(&team.lock);
    team.count = count;
    pthread_cond_broadcast(&team.changed);
    pthread_mutex_unlock(&team.lock);
    run_share(&team.shares[0]);
    for (int i = 1; i < count; i++) pthread_join(workers[i], NULL);
    pthread_cond_destroy(&team.changed);
    pthread_mutex_destroy(&team.lock);
    return team.error;
}
