/* vgpu: a HIP runtime (libamdhip64.so) without a GPU.  Device memory is guarded host memory; kernels run through
 * per-instruction native functions supplied by a compile callback (see vgpu.py), scheduled here: waves, barriers, LDS.
 * Own code.  Build: clang -std=gnu11 -O1 -fPIC -shared -D__HIP_PLATFORM_AMD__ -o libamdhip64.so vgpu_hip.c -lpthread
 * Settings: environment VGPU_<KEY> at load, or vgpu_set("KEY","value") at run time (see README.md). */
#define _GNU_SOURCE
#include <hip/hip_runtime_api.h>
#include <errno.h>
#include <fnmatch.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#define EXP __attribute__((visibility("default")))
typedef uint64_t u64; typedef uint32_t u32; typedef uint8_t u8;
#define PG 4096ul
#define UP(x, a) (((x) + (a) - 1) / (a) * (a))

/* ---------------------------------------------------------------- state */
static pthread_mutex_t mu = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;   /* bookkeeping */
static pthread_mutex_t qmu = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;  /* execution of queued work */
typedef struct { char arch[48], name[96]; size_t total, other, used, peak; int wave, cus, integrated; hipError_t sticky, async_err; } dev_t_;
static dev_t_ devs[16]; static int ndev; static __thread int cur; static __thread hipError_t last;
static struct { int poison, guard, quarantine, async, sticky, trace, threads, abort_, strict, delay; size_t poison_max; u64 max_insts, sched; u8 pat; } cfg;
static u64 n_err, next_id = 1, insts, launches, waves_run, opseq; static double emu_s;
static char errlog[65536]; static size_t errlen;

typedef struct alloc { char *map, *body, *p; size_t maplen, bodylen, size, acct; int dev, kind, freed, flags; u64 id; } alloc;
enum { K_DEV, K_HOST, K_MANAGED, K_REG };
static const char *kinds[] = {"device", "host", "managed", "registered"};
static alloc **al; static int nal, cal; static alloc *quar[65536]; static unsigned qh, qt; static alloc *reg_[4096]; static int nreg;

typedef struct { const char *name; u64 calls; } fn_; static fn_ fns[400]; static int nfns;
typedef struct { char pat[64]; long nth, seen; int err, repeat; } fail_; static fail_ fails[64]; static int nfails;

typedef struct { void *fn; u8 n, flags, g[6]; } slot;                 /* one per 4 bytes of code */
typedef struct { u32 off, size, kind; } karg;
struct ihipModuleSymbol_t { char *name; struct ihipModule_t *mod; u64 entry; u32 rsrc1, rsrc2, rsrc3, props, lds, priv, kargsz, vgpr, sgpr, maxwg, wave; int nargs; karg *a; int maxdyn; };
typedef struct { char *name; u64 addr, size; } sym_;
struct ihipModule_t { u64 id, base, size; slot *slots; int nk, ns, dev; struct ihipModuleSymbol_t *k[1024]; sym_ *s; };
typedef struct op { struct op *next; double t0; int type, kind; u64 seq; char *dst; const char *src; size_t n, rows, dp, sp; u32 val, g[3], b[3], dyn; int width; hipFunction_t f; u8 *karg; size_t kn; struct ihipEvent_t *ev; hipStream_t on; u64 onseq; void (*cb)(hipStream_t, hipError_t, void *); void (*host)(void *); void *arg; } op;
struct ihipStream_t { u32 magic, flags; int dev, prio; op *head, *tail; hipError_t err; struct ihipStream_t *next; };
struct ihipEvent_t { u32 magic, flags; int recorded; u64 seq; hipStream_t s; int done; double t; };
#define SMAGIC 0x53545245u
#define EMAGIC 0x4556454eu
static struct ihipStream_t nullst[16], ptst[16]; static hipStream_t streams; static int ctxs[16];
enum { OP_COPY, OP_SET, OP_LAUNCH, OP_REC, OP_WAIT, OP_CB, OP_HOST, OP_FREE };

static __thread int on_gfx90a;                                       /* of the workgroup that this thread runs */
typedef int (*load_cb_t)(u64 mod, const void *image, u64 size); static load_cb_t load_cb;
typedef int (*compile_cb_t)(u64 mod, u64 pc, slot *out); static compile_cb_t compile_cb;
typedef int (*launch_cb_t)(const char *name, u64 mod, const u32 *dims /*grid[3],block[3],dynlds*/, const void *kernarg, u64 n); static launch_cb_t launch_cb;
typedef void (*unload_cb_t)(u64 mod); static unload_cb_t unload_cb;
static u32 sg_template[2][260]; static int sg_ready[2];

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void problem(const char *f, ...) {
  char b[512]; va_list v; va_start(v, f); vsnprintf(b, sizeof b, f, v); va_end(v);
  pthread_mutex_lock(&mu); n_err++; size_t n = strlen(b);
  if (errlen + n + 2 < sizeof errlog) { memcpy(errlog + errlen, b, n); errlen += n; errlog[errlen++] = '\n'; errlog[errlen] = 0; }
  pthread_mutex_unlock(&mu); fprintf(stderr, "vgpu: %s\n", b); if (cfg.abort_) abort();
}
/* ---------------------------------------------------------------- configuration */
static size_t bytes(const char *s) {
  char *e; double v = strtod(s, &e); size_t m = 1;
  switch (*e) { case 'K': case 'k': m = 1ul << 10; break; case 'M': case 'm': m = 1ul << 20; break; case 'G': case 'g': m = 1ul << 30; break; }
  return (size_t)(v * m);
}
static void set_devices(const char *s) {
  static const struct { const char *a, *n; int cus, igp; } kn[] = {
    {"gfx1100", "AMD Radeon RX 7900 XT (virtual)", 42, 0}, {"gfx1101", "AMD Radeon RX 7800 XT (virtual)", 30, 0}, {"gfx1102", "AMD Radeon RX 7600 (virtual)", 16, 0},
    {"gfx1036", "AMD Radeon Graphics (virtual APU)", 1, 1}, {"gfx1103", "AMD Radeon 780M (virtual APU)", 6, 1}, {"gfx1151", "AMD Radeon 8060S (virtual APU)", 20, 1},
    {"gfx1030", "AMD Radeon RX 6900 XT (virtual)", 40, 0}, {"gfx1200", "AMD Radeon RX 9060 XT (virtual)", 16, 0}, {"gfx1201", "AMD Radeon RX 9070 XT (virtual)", 32, 0},
    {"gfx90a", "AMD Instinct MI250X (virtual)", 110, 0}, {"gfx942", "AMD Instinct MI300X (virtual)", 304, 0}};
  char b[1024]; snprintf(b, sizeof b, "%s", s); ndev = 0; char *sv;
  for (char *t = strtok_r(b, ",", &sv); t && ndev < 16; t = strtok_r(NULL, ",", &sv)) {
    dev_t_ *d = &devs[ndev]; memset(d, 0, sizeof *d); char *c = strchr(t, ':'); d->total = 20ul << 30;
    if (c) { *c = 0; d->total = bytes(c + 1); }
    snprintf(d->arch, sizeof d->arch, "%s", t); snprintf(d->name, sizeof d->name, "AMD GPU %s (virtual)", t); d->cus = 40;
    d->wave = !strncmp(t, "gfx9", 4) ? 64 : 32;
    for (size_t i = 0; i < sizeof kn / sizeof *kn; i++) if (!strcmp(kn[i].a, t)) { snprintf(d->name, sizeof d->name, "%s", kn[i].n); d->cus = kn[i].cus; d->integrated = kn[i].igp; }
    ndev++;
  }
}
static int err_code(const char *s);
EXP int vgpu_fail(const char *pat, long nth, int err, int repeat) {
  pthread_mutex_lock(&mu); if (nfails < 64) { fail_ *f = &fails[nfails++]; snprintf(f->pat, sizeof f->pat, "%s", pat); f->nth = nth < 1 ? 1 : nth; f->seen = 0; f->err = err; f->repeat = repeat; }
  pthread_mutex_unlock(&mu); return nfails;
}
EXP void vgpu_fail_clear(void) { nfails = 0; }
EXP int vgpu_set(const char *k, const char *v) {
#define IS(x) (!strcmp(k, x))
  long n = strtol(v, NULL, 0);
  if (IS("DEVICES")) set_devices(v);
  else if (IS("TOTAL_BYTES") || IS("FREE_BYTES") || IS("OTHER_BYTES")) {           /* comma list: one value per device */
    char b[512]; snprintf(b, sizeof b, "%s", v); char *sv; int i = 0;
    for (char *t = strtok_r(b, ",", &sv); t && i < ndev; t = strtok_r(NULL, ",", &sv), i++) {
      size_t x = bytes(t); dev_t_ *d = &devs[i];
      if (IS("TOTAL_BYTES")) d->total = x; else if (IS("OTHER_BYTES")) d->other = x;
      else d->other = d->total > d->used + x ? d->total - d->used - x : 0;          /* FREE_BYTES: what another process leaves us now */
    }
  } else if (IS("FAIL")) {                                                           /* "hipMalloc:3:2,hipMemcpy*:1:hipErrorUnknown+,..." */
    char b[1024]; snprintf(b, sizeof b, "%s", v); char *sv;
    for (char *t = strtok_r(b, ",", &sv); t; t = strtok_r(NULL, ",", &sv)) {
      char p[64] = "", e[64] = "hipErrorUnknown"; long nth = 1; sscanf(t, "%63[^:]:%ld:%63s", p, &nth, e); size_t l = strlen(e); int rep = l && e[l - 1] == '+'; if (rep) e[l - 1] = 0;
      vgpu_fail(p, nth, err_code(e), rep);
    }
  } else if (IS("POISON")) { cfg.poison = strcmp(v, "off") != 0; if (cfg.poison) cfg.pat = (u8)strtol(v, NULL, 16); }
  else if (IS("POISON_MAX")) cfg.poison_max = bytes(v); else if (IS("GUARD")) cfg.guard = n; else if (IS("QUARANTINE")) cfg.quarantine = n > 65000 ? 65000 : n;
  else if (IS("ASYNC")) cfg.async = n; else if (IS("STICKY")) cfg.sticky = n; else if (IS("TRACE")) cfg.trace = n; else if (IS("THREADS")) cfg.threads = n < 1 ? 1 : n;
  else if (IS("ABORT")) cfg.abort_ = n; else if (IS("STRICT_HOST")) cfg.strict = n; else if (IS("ASYNC_DELAY")) cfg.delay = n; else if (IS("SCHED")) cfg.sched = strtoull(v, NULL, 0); else if (IS("MAX_INSTS")) cfg.max_insts = strtoull(v, NULL, 0);
  else return -1;
  return 0;
}
EXP void vgpu_reset_counters(void) { for (int i = 0; i < nfns; i++) fns[i].calls = 0; insts = launches = waves_run = 0; emu_s = 0; n_err = errlen = 0; errlog[0] = 0; for (int i = 0; i < ndev; i++) { devs[i].peak = devs[i].used; devs[i].sticky = devs[i].async_err = 0; } }
static struct sigaction oldsegv, oldbus; static void on_segv(int, siginfo_t *, void *);
__attribute__((constructor)) static void ctor(void) {
  cfg.poison = 1; cfg.pat = 0xCB; cfg.guard = 1; cfg.quarantine = 2048; cfg.poison_max = 256ul << 20; cfg.max_insts = 4000000000ull; cfg.threads = 1; cfg.delay = 500;
  set_devices("gfx1100:20GiB");
  static const char *keys[] = {"DEVICES", "TOTAL_BYTES", "OTHER_BYTES", "FREE_BYTES", "FAIL", "POISON", "POISON_MAX", "GUARD", "QUARANTINE", "ASYNC", "STICKY", "TRACE", "THREADS", "ABORT", "STRICT_HOST", "MAX_INSTS", "SCHED", "ASYNC_DELAY"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) { char e[64]; snprintf(e, sizeof e, "VGPU_%s", keys[i]); const char *v = getenv(e); if (v && *v) vgpu_set(keys[i], v); }
  for (int i = 0; i < 16; i++) { nullst[i] = (struct ihipStream_t){.magic = SMAGIC, .dev = i}; ptst[i] = nullst[i]; }
}
static void arm_segv(void) { static int done; if (done) return; done = 1; struct sigaction s = {0}; s.sa_sigaction = on_segv; s.sa_flags = SA_SIGINFO | SA_NODEFER; sigaction(SIGSEGV, &s, &oldsegv); sigaction(SIGBUS, &s, &oldbus); }
/* ---------------------------------------------------------------- entry of every API function */
static hipError_t enter(const char *name, fn_ **slot_) {
  fn_ *f = *slot_; hipError_t r = hipSuccess;
  pthread_mutex_lock(&mu);
  if (!f) { for (int i = 0; i < nfns; i++) if (!strcmp(fns[i].name, name)) f = &fns[i]; if (!f) { f = &fns[nfns++]; f->name = name; } *slot_ = f; }
  f->calls++;
  for (int i = 0; i < nfails; i++) { fail_ *x = &fails[i]; if (fnmatch(x->pat, name, 0)) continue; long s = ++x->seen; if (s == x->nth || (x->repeat && s > x->nth)) r = x->err; }
  pthread_mutex_unlock(&mu);
  if (cfg.trace) fprintf(stderr, "vgpu: %s%s\n", name, r ? "  -> injected failure" : "");
  if (!r && cfg.sticky && devs[cur].sticky) r = devs[cur].sticky;
  if (r) last = r;
  return r;
}
#define API static fn_ *f__; { hipError_t e__ = enter(__func__, &f__); if (e__) return e__; }
#define API_NS static fn_ *f__; { hipError_t e__ = enter(__func__, &f__); if (e__ && e__ != devs[cur].sticky) return e__; }
#define RET(x) do { hipError_t r__ = (x); if (r__) last = r__; return r__; } while (0)
#define NEED(c) do { if (!(c)) RET(hipErrorInvalidValue); } while (0)
#define DEVOK(d) do { if ((d) < 0 || (d) >= ndev) RET(hipErrorInvalidDevice); } while (0)
EXP u64 vgpu_calls(const char *pat) { u64 n = 0; for (int i = 0; i < nfns; i++) if (!fnmatch(pat, fns[i].name, 0)) n += fns[i].calls; return n; }
EXP u64 vgpu_problems(void) { return n_err; }
EXP const char *vgpu_problem_log(void) { return errlog; }

/* ---------------------------------------------------------------- memory */
static int find_ix(const void *q) { int lo = 0, hi = nal; while (lo < hi) { int m = (lo + hi) / 2; if (al[m]->map <= (char *)q) lo = m + 1; else hi = m; } return lo - 1; }
static alloc *find(const void *q) {                       /* allocation (live, freed or its guard zones) containing q */
  int i = find_ix(q); if (i >= 0 && (char *)q < al[i]->map + al[i]->maplen) return al[i];
  for (i = 0; i < nreg; i++) if ((char *)q >= reg_[i]->p && (char *)q < reg_[i]->p + reg_[i]->size) return reg_[i];
  return NULL;
}
static alloc *find_live(const void *q) { alloc *a = find(q); return a && !a->freed && (char *)q >= a->p && (char *)q < a->p + a->size ? a : NULL; }
/* all allocations live far apart in one reserved, inaccessible address range, so wild accesses fault instead of hitting the host's heap */
#define ARENA (16ul << 40)
#define GAP (8ul << 20)
static char *arena, *arena_next;
static char *va_get(size_t n) {
  if (!arena) { arena = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); if (arena == MAP_FAILED) arena = (char *)1; arena_next = arena; }
  if (arena == (char *)1 || arena_next + n > arena + ARENA) return mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  char *p = arena_next; arena_next += n; return p;
}
static void va_put(char *p, size_t n) { if (arena != (char *)1 && p >= arena && p < arena + ARENA) mmap(p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0); else munmap(p, n); }
static void drop(alloc *a) { int i = find_ix(a->map); if (i >= 0 && al[i] == a) { memmove(al + i, al + i + 1, (nal - i - 1) * sizeof *al); nal--; } va_put(a->map, a->maplen); free(a); }
static void poison(alloc *a, u8 pat) { if (a->size <= cfg.poison_max) memset(a->p, pat, a->size); else { memset(a->p, pat, cfg.poison_max / 2); memset(a->p + a->size - cfg.poison_max / 2, pat, cfg.poison_max / 2); } }
static hipError_t mem_new(void **out, size_t size, int kind, int flags) {
  *out = NULL; if (!size) return hipSuccess;
  pthread_mutex_lock(&mu); dev_t_ *d = &devs[cur]; size_t acct = kind == K_HOST ? 0 : UP(size, PG);
  if (acct + d->used + d->other > d->total || size > (1ul << 46)) { pthread_mutex_unlock(&mu); return hipErrorOutOfMemory; }
  alloc *a = calloc(1, sizeof *a); size_t G = cfg.guard ? GAP : 0;
  a->size = size; a->bodylen = UP(UP(size, 256) + 256, PG); a->maplen = a->bodylen + 2 * G;
  a->map = va_get(a->maplen);
  if (a->map == MAP_FAILED) { free(a); pthread_mutex_unlock(&mu); return hipErrorOutOfMemory; }
  a->body = a->map + G; mprotect(a->body, a->bodylen, PROT_READ | PROT_WRITE); a->p = a->body + a->bodylen - UP(size, 256);
  a->acct = acct; a->dev = cur; a->kind = kind; a->flags = flags; a->id = next_id++;
  if (cfg.guard) { memset(a->body, 0xA5, a->p - a->body); memset(a->p + size, 0xA5, a->body + a->bodylen - a->p - size); }
  if (cfg.poison) poison(a, cfg.pat);
  if (cfg.strict && kind == K_DEV) mprotect(a->body, a->bodylen, PROT_NONE);
  if (nal == cal) al = realloc(al, (cal = cal ? cal * 2 : 256) * sizeof *al);
  int i = find_ix(a->map) + 1; memmove(al + i + 1, al + i, (nal - i) * sizeof *al); al[i] = a; nal++;
  d->used += acct; if (d->used > d->peak) d->peak = d->used;
  *out = a->p; pthread_mutex_unlock(&mu); return hipSuccess;
}
static void open_all(int on) { if (!cfg.strict) return; for (int i = 0; i < nal; i++) if (!al[i]->freed && al[i]->kind == K_DEV) mprotect(al[i]->body, al[i]->bodylen, on ? PROT_READ | PROT_WRITE : PROT_NONE); }
static int check_guards(alloc *a, const char *when) {
  if (!cfg.guard || a->freed || a->kind == K_REG) return 0;
  for (char *q = a->body; q < a->p; q++) if (*(u8 *)q != 0xA5) { problem("%s: %s allocation #%llu (%zu bytes) was written %zd bytes BEFORE its start", when, kinds[a->kind], (unsigned long long)a->id, a->size, a->p - q); memset(a->body, 0xA5, a->p - a->body); return 1; }
  for (char *q = a->p + a->size; q < a->body + a->bodylen; q++) if (*(u8 *)q != 0xA5) { problem("%s: %s allocation #%llu (%zu bytes) was written %zd bytes PAST its end", when, kinds[a->kind], (unsigned long long)a->id, a->size, q - a->p - (ssize_t)a->size + 1); memset(a->p + a->size, 0xA5, a->body + a->bodylen - a->p - a->size); return 1; }
  return 0;
}
EXP int vgpu_check(void) { int n = 0; pthread_mutex_lock(&mu); open_all(1); for (int i = 0; i < nal; i++) n += check_guards(al[i], "check"); open_all(0); pthread_mutex_unlock(&mu); return n; }
static hipError_t mem_free(void *p, int host, const char *who) {
  if (!p) return hipSuccess;
  pthread_mutex_lock(&mu); alloc *a = find(p);
  if (!a || a->p != p || a->kind == K_REG || a->freed || (host != (a->kind == K_HOST))) {
    if (a && a->freed) problem("%s: double free of allocation #%llu", who, (unsigned long long)a->id); else problem("%s: pointer %p was not allocated by the matching function", who, p);
    pthread_mutex_unlock(&mu); return hipErrorInvalidValue;
  }
  if (cfg.strict && a->kind == K_DEV) mprotect(a->body, a->bodylen, PROT_READ | PROT_WRITE);
  check_guards(a, who); devs[a->dev].used -= a->acct; a->freed = 1;
  if (!cfg.quarantine) drop(a);
  else { mprotect(a->body, a->bodylen, PROT_NONE); madvise(a->body, a->bodylen, MADV_DONTNEED);   /* use after free faults */
    quar[qh++ % 65536] = a; while (qh - qt > (unsigned)cfg.quarantine) drop(quar[qt++ % 65536]); }
  pthread_mutex_unlock(&mu); return hipSuccess;
}
/* ---------------------------------------------------------------- faults: SIGSEGV inside copies and kernels -> hipErrorIllegalAddress */
static __thread sigjmp_buf jb; static __thread volatile int armed; static __thread void *fault_addr; static __thread u64 cur_pc;
static void on_segv(int sig, siginfo_t *si, void *u) {
  if (armed) { armed = 0; fault_addr = si->si_addr; siglongjmp(jb, 1); }
  struct sigaction *o = sig == SIGSEGV ? &oldsegv : &oldbus;
  if (o->sa_flags & SA_SIGINFO) { o->sa_sigaction(sig, si, u); return; }
  if (o->sa_handler != SIG_DFL && o->sa_handler != SIG_IGN) { o->sa_handler(sig); return; }
  sigaction(sig, o, NULL);
}
static void describe(char *b, size_t n, void *p) {
  pthread_mutex_lock(&mu); alloc *a = find(p);
  if (!a) snprintf(b, n, "%p (no allocation there)", p);
  else snprintf(b, n, "%p: %s allocation #%llu of %zu bytes%s, offset %zd", p, kinds[a->kind], (unsigned long long)a->id, a->size, a->freed ? " that was FREED" : "", (char *)p - a->p);
  pthread_mutex_unlock(&mu);
}
static hipError_t fatal(int dev, hipError_t e) { devs[dev].sticky = e; return e; }
/* ---------------------------------------------------------------- emulator scheduler */
typedef struct { u32 *sg, *vg, *acc; u8 *scr; int done, lanes, wait; } wv;
static int atomics_lock; static __thread int holding;
static void lock_atomics(void) { while (__atomic_exchange_n(&atomics_lock, 1, __ATOMIC_ACQUIRE)) while (__atomic_load_n(&atomics_lock, __ATOMIC_RELAXED)) sched_yield(); holding = 1; }
static void unlock_atomics(void) { holding = 0; __atomic_store_n(&atomics_lock, 0, __ATOMIC_RELEASE); }
/* profile: executed wave instructions per kernel and code position */
typedef struct prof { struct prof *next; hipFunction_t f; u64 mod, base, size, launches, waves, *n; } prof;
static prof *profs; static int profiling;
static prof *prof_of(hipFunction_t f) {
  for (prof *p = profs; p; p = p->next) if (p->f == f) return p;
  prof *p = calloc(1, sizeof *p); p->f = f; p->mod = f->mod->id; p->base = f->mod->base; p->size = f->mod->size; p->n = calloc(p->size / 4 + 1, 8); p->next = profs; profs = p; return p;
}
static void prof_drop(u64 mod) { for (prof **q = &profs; *q;) { prof *p = *q; if (mod && p->mod != mod) { q = &p->next; continue; } *q = p->next; free(p->n); free(p); } }
EXP void vgpu_profile(int on) { profiling = on; }
EXP int vgpu_profile_get(int i, const char **name, u64 *out /*module, base, size, counters, launches, waves*/) {
  pthread_mutex_lock(&mu); prof *p = profs; while (p && i--) p = p->next;
  if (p) { *name = p->f->name; u64 v[6] = {p->mod, p->base, p->size, (u64)p->n, p->launches, p->waves}; memcpy(out, v, sizeof v); p->launches = p->waves = 0; }
  pthread_mutex_unlock(&mu); return p != NULL;
}
/* >>> vgpu_checks (1 of 4): hooks of vgpu_checks.c; NULL when off */
typedef struct { void (*launch)(const char *name, u64 mod, u64 base, u64 size, u32 wave, u32 rsrc1, u64 nwg, u32 nw, const char *arch); void (*wg)(u64 wg, u8 *lds, u64 n); void (*inst)(int wave, u64 off, u32 *sg, u32 *vg, u32 *acc); void (*release)(void); void (*end)(void); } checks_t;
static const checks_t *checks;
EXP void vgpu_set_checks(const checks_t *h) { checks = h; }
EXP void vgpu_problem(const char *s) { problem("%s", s); }
/* <<< vgpu_checks */
typedef struct { hipFunction_t f; const u32 *g, *b; u32 dyn; u64 karg; u64 next, total; int dev; hipError_t err; u64 insts, waves, *prof; } run_t;
static hipError_t run_wg(run_t *R, u64 wg, wv *w, int nw, u8 *lds, size_t ldsn, u8 *pkt, u64 *cnt) {
  hipFunction_t f = R->f; hipModule_t m = f->mod; int W = f->wave, T = W == 64; u32 lx = R->b[0], ly = R->b[1], tot = lx * ly * R->b[2];
  u32 gid[3] = {wg % R->g[0], wg / R->g[0] % R->g[1], wg / R->g[0] / R->g[1]}; int gfx12 = !strncmp(devs[R->dev].arch, "gfx12", 5); on_gfx90a = !strncmp(devs[R->dev].arch, "gfx90a", 6);
  memset(lds, cfg.poison ? cfg.pat : 0, ldsn);
  for (int i = 0; i < nw; i++) {
    u32 *s = w[i].sg; memcpy(s, sg_template[T], sizeof sg_template[T]); memset(w[i].vg, 0, 256ul * W * 4); if (T) memset(w[i].acc, 0, 256ul * W * 4);
    if (f->priv) memset(w[i].scr, cfg.poison ? cfg.pat : 0, (size_t)f->priv * W);
    int lanes = tot - i * W < (u32)W ? (int)(tot - i * W) : W; w[i].lanes = lanes; w[i].done = w[i].wait = 0;
    u64 ex = lanes >= 64 ? ~0ull : (1ull << lanes) - 1; s[126] = (u32)ex; if (T) s[127] = ex >> 32;
    s[256] = (u32)f->entry; s[257] = f->entry >> 32; s[259] = f->priv;
    s[235] = 0; s[236] = (u64)lds >> 32; s[237] = 0; s[238] = ((u64)lds >> 32) - 1;   /* shared aperture; the private one is not emulated and faults */
    int n = 0; u64 v;
#define PUT64(x) do { v = (u64)(x); s[n++] = (u32)v; s[n++] = v >> 32; } while (0)
    if (f->props & 1) n += 4;
    if (f->props & 2) PUT64(pkt);
    if (f->props & 4) PUT64(0);
    if (f->props & 8) PUT64(R->karg);
    if (f->props & 16) PUT64(wg);
    if (f->props & 32) PUT64(0);
    if (f->props & 64) s[n++] = f->priv;
    u32 nu = f->rsrc2 >> 1 & 31; if (nu > (u32)n) n = nu; if (nu) n = nu;
    if (gfx12) { s[108 + 7] = (gid[1] & 0xffff) | gid[2] << 16; s[108 + 9] = gid[0]; }
    else for (int k = 0; k < 3; k++) if (f->rsrc2 >> (7 + k) & 1) s[n++] = gid[k];
    for (int l = 0; l < lanes; l++) { u32 t = i * W + l; w[i].vg[l] = t / (lx * ly) << 20 | (t / lx % ly) << 10 | t % lx; }
  }
  const checks_t *K = checks; if (K) K->wg(wg, lds, ldsn);   /* vgpu_checks (2 of 4) */
  typedef void (*F)(u64, u64, u64, u64, u64, u64); u64 lim = cfg.max_insts; int left = nw; u64 c = 0; slot *S = m->slots; u64 base = m->base, size = m->size;
  u64 *N = R->prof; int mt = cfg.threads > 1; u64 rnd = cfg.sched * 0x9E3779B97F4A7C15ull + wg * 0xBF58476D1CE4E5B9ull + 1, q = ~0ull; int first = 0;
  while (left) {
    int running = 0;
    for (int i = 0; i < nw; i++) running += !w[i].done && !w[i].wait;
    if (!running && K) K->release();   /* vgpu_checks (3 of 4) */
    if (!running) for (int i = 0; i < nw; i++) w[i].wait = 0;                      /* all live waves are at the barrier: release it */
    if (cfg.sched) { rnd ^= rnd << 13; rnd ^= rnd >> 7; rnd ^= rnd << 17; first = rnd % nw; q = 1 + (rnd >> 20) % 48; }
    for (int j = 0; j < nw; j++) {
      int i = cfg.sched ? (first + j) % nw : j; if (w[i].done || w[i].wait) continue;
      u64 A[6] = {(u64)w[i].sg, (u64)w[i].vg, 0, (u64)lds, (u64)w[i].scr, (u64)w[i].acc}; u64 left_q = q;
      while (left_q--) {
        u64 pc = w[i].sg[256] | (u64)w[i].sg[257] << 32, o = pc - base;
        if (pc == ~0ull) { w[i].done = 1; left--; break; }
        if (o >= size) { *cnt += c; problem("kernel %s: program counter left the code object", f->name); return hipErrorLaunchFailure; }
        slot *x = &S[o >> 2];
        if (!x->fn) { armed = 0; int rc = compile_cb ? compile_cb(m->id, pc, x) : -1; armed = 1; if (rc || !x->fn) { *cnt += c; problem("kernel %s: cannot emulate the instruction at +0x%llx", f->name, (unsigned long long)o); return hipErrorNotSupported; } }
        if (N) { if (mt) __atomic_fetch_add(&N[o >> 2], 1, __ATOMIC_RELAXED); else N[o >> 2]++; }
        if (K) K->inst(i, o, w[i].sg, w[i].vg, w[i].acc);   /* vgpu_checks (3 of 4) */
        cur_pc = o; int lk = mt && (x->flags & 2); if (lk) lock_atomics();
        ((F)x->fn)(A[x->g[0]], A[x->g[1]], A[x->g[2]], A[x->g[3]], A[x->g[4]], A[x->g[5]]);
        if (lk) unlock_atomics();
        if (++c > lim) { *cnt += c; problem("kernel %s: more than %llu wave instructions in one workgroup (endless loop?)", f->name, (unsigned long long)lim); return hipErrorLaunchTimeOut; }
        if (x->flags & 1) { w[i].wait = 1; break; }
      }
    }
  }
  *cnt += c; return hipSuccess;
}
/* instructions implemented here rather than by the emulator: (sgpr, ...) with the program counter in sg[256..257] */
EXP void vgpu_op_getpc(u32 *sg, u64 a1, u64 a2, u64 a3, u64 a4, u64 a5) {
  u64 pc = sg[256] | (u64)sg[257] << 32; u32 d = *(u32 *)pc >> 16 & 0x7f; pc += 4; sg[d] = (u32)pc; sg[d + 1] = pc >> 32; sg[256] = (u32)pc; sg[257] = pc >> 32;
}
EXP void vgpu_op_setpc(u32 *sg, u64 a1, u64 a2, u64 a3, u64 a4, u64 a5) {
  u64 pc = sg[256] | (u64)sg[257] << 32; u32 s = *(u32 *)pc & 0x7f; sg[256] = sg[s]; sg[257] = sg[s + 1];
}
#define OWN(name) EXP void vgpu_op_##name(u32 *sg, u32 *vg, u64 mem, u64 lds, u64 scr, u64 acc)
#define PRE(n) u64 pc = sg[256] | (u64)sg[257] << 32; const u32 *ip = (const u32 *)pc; pc += (n); sg[256] = (u32)pc; sg[257] = pc >> 32; u64 ex = sg[126] | (W == 64 ? (u64)sg[127] << 32 : 0); (void)ip; (void)ex
static u32 src_(const u32 *sg, const u32 *vg, u32 s, int l, int W) { return s >= 256 ? vg[(s - 256) * W + l] : sg[s]; }
static void swizzle(u32 *sg, u32 *vg, int W) {
  PRE(8); u32 off = ip[0] & 0xffff, a = ip[1] & 255, d = ip[1] >> 24, t[64];
  for (int l = 0; l < W; l++) {
    int s; if ((off & 0xff00) == 0x8000) s = (l & ~3) | (off >> (2 * (l & 3)) & 3);                                    /* quad permute */
    else if ((off & 0xf000) == 0xc000) { int m = off & 31, n = off >> 5 & 31, dir = off >> 10 & 1; s = (l & ~31) | ((l & m) | (((l & 31) + (dir ? -n : n)) & ~m & 31)); }   /* rotate */
    else s = (l & ~31) | ((((l & 31) & (off & 31)) | (off >> 5 & 31)) ^ (off >> 10 & 31));                               /* bit masks */
    t[l] = ex >> s & 1 ? vg[a * W + s] : 0;
  }
  for (int l = 0; l < W; l++) if (ex >> l & 1) vg[d * W + l] = t[l];
}
OWN(swizzle32) { swizzle(sg, vg, 32); }
OWN(swizzle64) { swizzle(sg, vg, 64); }
OWN(nop8) { enum { W = 32 }; PRE(8); (void)vg; }
OWN(nop12) { enum { W = 32 }; PRE(12); (void)vg; }
OWN(nop4) { enum { W = 32 }; PRE(4); (void)vg; }   /* v_nop (vgpu_checks, tests) */
OWN(mov_dpp8) { enum { W = 32 }; PRE(8); u32 d = ip[0] >> 17 & 255, a = ip[1] & 255, t[W]; int fi = (ip[0] & 0x1ff) == 234;
  for (int l = 0; l < W; l++) { int s = (l & ~7) | (ip[1] >> (8 + 3 * (l & 7)) & 7); t[l] = ex >> s & 1 || fi ? vg[a * W + s] : 0; }
  for (int l = 0; l < W; l++) if (ex >> l & 1) vg[d * W + l] = t[l]; }
static void permlane(u32 *sg, u32 *vg, int x) { enum { W = 32 }; u64 pc0 = sg[256] | (u64)sg[257] << 32; u32 w1 = ((const u32 *)pc0)[1], s1 = w1 >> 9 & 0x1ff, s2 = w1 >> 18 & 0x1ff; PRE(s1 == 255 || s2 == 255 ? 12 : 8); u32 d = ip[0] & 255, os = ip[0] >> 11 & 15, a = ip[1] & 255, t[W];
  u64 sel = (s1 == 255 ? ip[2] : src_(sg, vg, s1, 0, W)) | (u64)(s2 == 255 ? ip[2] : src_(sg, vg, s2, 0, W)) << 32;
  for (int l = 0; l < W; l++) { int s = ((l & ~15) ^ (x ? 16 : 0)) | (int)(sel >> (4 * (l & 15)) & 15); t[l] = os & 1 || ex >> s & 1 ? vg[a * W + s] : os & 2 ? 0 : vg[d * W + l]; }
  for (int l = 0; l < W; l++) if (ex >> l & 1) vg[d * W + l] = t[l]; }
OWN(permlane16) { permlane(sg, vg, 0); }
OWN(permlanex16) { permlane(sg, vg, 1); }
OWN(permlane64_w32) { enum { W = 32 }; PRE(4); u32 d = ip[0] >> 17 & 255, a = ip[0] & 0x1ff; for (int l = 0; l < W; l++) if (ex >> l & 1) vg[d * W + l] = src_(sg, vg, a, l, W); }
/* WMMA, wave32.  D = A B + C on 16 x 16 tiles: A row m / B column m in lane m (gfx11), or half of k in lane m + 16 (gfx12);
 * D row m, column n in lane n + 16 * (m & 1), register m / 2 (gfx11) or lane n + 16 * (m / 8), register m % 8 (gfx12).  EXEC is ignored. */
static float bits_f(u32 x) { float f; memcpy(&f, &x, 4); return f; }
static u32 f_bits(float f) { u32 x; memcpy(&x, &f, 4); return x; }
static float h2f(u32 h) { u32 s = (h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023; return !e ? bits_f(s | f_bits((float)m * 0x1p-24f)) : bits_f(s | (e == 31 ? 255u : e + 112) << 23 | m << 13); }
static u32 f2h(float f) {                                          /* round to nearest even */
  u32 x = f_bits(f), s = x >> 16 & 0x8000, a = x & 0x7fffffff;
  if (a > 0x7f800000) return s | 0x7e00;
  if (a >= 0x477ff000) return s | 0x7c00;
  if (a < 0x38800000) { double v = (double)bits_f(a) * 0x1p24; u32 q = (u32)v; v -= q; return s | (q + (v > .5 || (v == .5 && (q & 1)))); }
  a -= 112u << 23; return s | (a + 0xfff + (a >> 13 & 1)) >> 13;
}
static u32 f2bf(float f) { u32 x = f_bits(f); return (x & 0x7fffffff) > 0x7f800000 ? x >> 16 | 0x40 : (x + 0x7fff + (x >> 16 & 1)) >> 16; }
static float fp8(u32 b) { u32 e = b >> 3 & 15, m = b & 7; float f = (b & 127) == 127 ? __builtin_nanf("") : e ? bits_f((e + 120) << 23 | m << 20) : (float)m * 0x1p-9f; return b & 128 ? -f : f; }
enum { T_F16, T_BF16, T_FP8, T_BF8, T_I8, T_I4, T_F32, T_I32 };
typedef float f16v __attribute__((vector_size(64))); typedef int32_t i16v __attribute__((vector_size(64)));
static void wmma(u32 *sg, u32 *vg, int ta, int tb, int out, int K, int g12) {
  enum { W = 32 }; PRE(8); u32 d = ip[0] & 255, nhi = ip[0] >> 8 & 7, opsel = ip[0] >> 13 & 1, clamp = ip[0] >> 15 & 1, neg = ip[1] >> 29, sa = (ip[1] & 0x1ff) - 256, sb = (ip[1] >> 9 & 0x1ff) - 256, sc = ip[1] >> 18 & 0x1ff;
  int sz = ta == T_I4 ? 4 : ta <= T_BF16 ? 16 : 8, per = 32 / sz, fl = ta <= T_BF8, half = out == T_F16 || out == T_BF16; u32 mask = (1u << sz) - 1, r[16][16];
  float A[16][32]; f16v B[32]; int32_t Ai[16][32]; i16v Bi[32];
  for (int q = 0; q < 2; q++) for (int m = 0; m < 16; m++) for (int k = 0; k < K; k++) {
    int e = g12 ? k % (K / 2) : k, l = g12 ? m + 16 * (k / (K / 2)) : m, t = q ? tb : ta; u32 x = vg[((q ? sb : sa) + e / per) * W + l] >> (e % per * sz) & mask;
    if (fl) { float v = t == T_F16 ? h2f(x) : t == T_BF16 ? bits_f(x << 16) : t == T_FP8 ? fp8(x) : h2f(x << 8); if (sz == 16 && (k & 1 ? nhi : neg) >> q & 1) v = -v; if (q) B[k][m] = v; else A[m][k] = v; }
    else { int32_t v = x; if (neg >> q & 1 && x >> (sz - 1)) v -= 1 << sz; if (q) Bi[k][m] = v; else Ai[m][k] = v; }
  }
  for (int m = 0; m < 16; m++) {
    u32 c[16]; int hs = g12 ? m & 1 : (int)opsel, reg = g12 ? (half ? (m & 7) >> 1 : m & 7) : m >> 1, hi = 16 * (g12 ? m >> 3 : m & 1);
    for (int n = 0; n < 16; n++) {                                 /* C: registers, or an inline constant for every element */
      u32 x = sc >= 256 ? vg[(sc - 256 + reg) * W + n + hi] : sg[sc];
      if (half && (sc < 240 || sc > 248)) { x = sc >= 256 && hs ? x >> 16 : x & 0xffff; x = out == T_F16 ? f_bits(h2f(x)) : x << 16; }
      if (out != T_I32) { if (nhi & 4) x &= 0x7fffffff; if (neg & 4) x ^= 0x80000000; }
      c[n] = x;
    }
    if (fl) { f16v acc = {0}; float t[16]; for (int k = 0; k < K; k++) acc += B[k] * A[m][k]; memcpy(t, &acc, 64); for (int n = 0; n < 16; n++) { float v = t[n] + bits_f(c[n]); r[m][n] = out == T_F16 ? f2h(v) : out == T_BF16 ? f2bf(v) : f_bits(v); } }
    else { i16v acc = {0}; int32_t t[16]; for (int k = 0; k < K; k++) acc += Bi[k] * Ai[m][k]; memcpy(t, &acc, 64); for (int n = 0; n < 16; n++) { int64_t v = (int64_t)t[n] + (int32_t)c[n]; if (clamp) v = v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v; r[m][n] = (u32)v; } }
  }
  for (int m = 0; m < 16; m++) for (int n = 0; n < 16; n++) {
    int hs = g12 ? m & 1 : (int)opsel; u32 *o = &vg[(d + (g12 ? (half ? (m & 7) >> 1 : m & 7) : m >> 1)) * W + n + 16 * (g12 ? m >> 3 : m & 1)];
    *o = !half ? r[m][n] : hs ? (*o & 0xffff) | r[m][n] << 16 : (*o & 0xffff0000) | r[m][n];
  }
}
/* MFMA 16 x 16, wave64.  D = A B + C: row m of A / column n of B in lane m or n + 16 g, which holds elements run * g .. of k;
 * D row 4 g + r, column n in register r of lane n + 16 g.  A and B may be accumulators too (bits 27 and 28 of the second word).
 * kind: 0 f32 (one element a lane), 1 f16, 2 bf16 (four).  gfx90a takes 16-bit denormals for zeros (PyTorch, "Numerical accuracy"). */
static void mfma(u32 *sg, u32 *vg, u32 *acc, int kind) {
  enum { W = 64 }; PRE(8); int run = kind ? 4 : 1, K = 4 * run, flush = kind && on_gfx90a;
  float A[16][16], B[16][16], D[16][16]; u32 sa = ip[1] & 511, sb = ip[1] >> 9 & 511, sc = ip[1] >> 18 & 511, d = ip[0] & 255;
  const u32 *va = ip[1] >> 27 & 1 ? acc : vg, *vb = ip[1] >> 28 & 1 ? acc : vg, *vc = ip[0] >> 15 & 1 ? acc : vg; u32 *vd = ip[0] >> 15 & 1 ? acc : vg;
  for (int l = 0; l < 64; l++) for (int i = 0; i < run; i++) for (int side = 0; side < 2; side++) {
    u32 s = side ? sb : sa, x = s >= 256 ? (side ? vb : va)[(s - 256 + (kind ? i / 2 : i)) * 64 + l] : sg[s], h = kind ? x >> (16 * (i & 1)) & 0xffff : x;
    if (flush && !(h & (kind == 1 ? 0x7c00 : 0x7f80))) h &= 0x8000;
    float f = kind == 0 ? bits_f(h) : kind == 1 ? h2f(h) : bits_f(h << 16);
    (side ? B : A)[l % 16][l / 16 * run + i] = f;
  }
  for (int m = 0; m < 16; m++) for (int n = 0; n < 16; n++) {
    float t = sc >= 256 ? bits_f(vc[(sc - 256 + m % 4) * 64 + n + 16 * (m / 4)]) : bits_f(sg[sc]);
    for (int k = 0; k < K; k++) t = __builtin_fmaf(A[m][k], B[n][k], t);
    D[m][n] = t;
  }
  for (int m = 0; m < 16; m++) for (int n = 0; n < 16; n++) vd[(d + m % 4) * 64 + n + 16 * (m / 4)] = f_bits(D[m][n]);
}
OWN(mfma_f32) { mfma(sg, vg, (u32 *)acc, 0); }
OWN(mfma_f16) { mfma(sg, vg, (u32 *)acc, 1); }
OWN(mfma_bf16) { mfma(sg, vg, (u32 *)acc, 2); }
#define WMMA(name, ta, tb, out, K, g12) OWN(wmma_##name) { wmma(sg, vg, ta, tb, out, K, g12); }
WMMA(f32_f16_11, T_F16, T_F16, T_F32, 16, 0) WMMA(f32_bf16_11, T_BF16, T_BF16, T_F32, 16, 0) WMMA(f16_f16_11, T_F16, T_F16, T_F16, 16, 0) WMMA(bf16_bf16_11, T_BF16, T_BF16, T_BF16, 16, 0)
WMMA(i32_iu8_11, T_I8, T_I8, T_I32, 16, 0) WMMA(i32_iu4_11, T_I4, T_I4, T_I32, 16, 0)
WMMA(f32_f16_12, T_F16, T_F16, T_F32, 16, 1) WMMA(f32_bf16_12, T_BF16, T_BF16, T_F32, 16, 1) WMMA(f16_f16_12, T_F16, T_F16, T_F16, 16, 1) WMMA(bf16_bf16_12, T_BF16, T_BF16, T_BF16, 16, 1)
WMMA(i32_iu8_12, T_I8, T_I8, T_I32, 16, 1) WMMA(i32_iu4_12, T_I4, T_I4, T_I32, 16, 1) WMMA(i32_iu4x32_12, T_I4, T_I4, T_I32, 32, 1)
WMMA(f32_fp8_fp8_12, T_FP8, T_FP8, T_F32, 16, 1) WMMA(f32_fp8_bf8_12, T_FP8, T_BF8, T_F32, 16, 1) WMMA(f32_bf8_fp8_12, T_BF8, T_FP8, T_F32, 16, 1) WMMA(f32_bf8_bf8_12, T_BF8, T_BF8, T_F32, 16, 1)
static void *run_worker(void *arg) {
  run_t *R = arg; hipFunction_t f = R->f; int W = f->wave; u32 tot = R->b[0] * R->b[1] * R->b[2]; int nw = (tot + W - 1) / W; size_t ldsn = UP(f->lds + R->dyn + 64, 512);
  wv *w = calloc(nw, sizeof *w);
  /* LDS at the start of a 4 GiB-aligned region: generic ("flat") pointers to it, aperture:offset, are then plain addresses */
  char *res = mmap(NULL, 2ul << 32, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); if (res == MAP_FAILED) { R->err = hipErrorOutOfMemory; free(w); return NULL; }
  u8 *lds = (u8 *)UP((u64)res, 1ul << 32); ldsn = UP(ldsn, PG); mprotect(lds, ldsn, PROT_READ | PROT_WRITE); u8 pkt[64] __attribute__((aligned(64))) = {0}; u64 cnt = 0;
  uint16_t *h = (uint16_t *)pkt; h[1] = 3; for (int k = 0; k < 3; k++) { h[2 + k] = R->b[k]; ((u32 *)pkt)[3 + k] = R->g[k] * R->b[k]; } ((u32 *)pkt)[6] = f->priv; ((u32 *)pkt)[7] = f->lds + R->dyn; memcpy(pkt + 40, &R->karg, 8);
  for (int i = 0; i < nw; i++) { w[i].sg = aligned_alloc(64, UP(260 * 4, 64)); w[i].vg = aligned_alloc(64, 256ul * W * 4); w[i].acc = W == 64 ? aligned_alloc(64, 256ul * W * 4) : w[i].vg; w[i].scr = f->priv ? aligned_alloc(64, UP((size_t)f->priv * W, 64)) : NULL; }
#if defined(__x86_64__)
  unsigned mx = _mm_getcsr(); if (!(f->rsrc1 >> 16 & 3)) _mm_setcsr(mx | 0x8040);   /* kernel asks for flushed f32 denormals */
#endif
  hipError_t e = hipSuccess; arm_segv();
  if (sigsetjmp(jb, 1)) { if (holding) unlock_atomics(); char b[256]; describe(b, sizeof b, fault_addr); problem("kernel %s: memory fault at %s (code +0x%llx)", f->name, b, (unsigned long long)cur_pc); e = hipErrorIllegalAddress; }
  else { armed = 1; for (;;) { u64 wg = __atomic_fetch_add(&R->next, 1, __ATOMIC_RELAXED); if (wg >= R->total || R->err) break; hipError_t x = run_wg(R, cfg.sched & 1 ? R->total - 1 - wg : wg, w, nw, lds, ldsn, pkt, &cnt); if (x) { R->err = x; break; } } armed = 0; }
#if defined(__x86_64__)
  _mm_setcsr(mx);
#endif
  armed = 0; if (e) R->err = e;
  __atomic_fetch_add(&R->insts, cnt, __ATOMIC_RELAXED); __atomic_fetch_add(&R->waves, (u64)nw, __ATOMIC_RELAXED);
  for (int i = 0; i < nw; i++) { free(w[i].sg); free(w[i].vg); if (W == 64) free(w[i].acc); free(w[i].scr); } free(w); munmap(res, 2ul << 32); return NULL;
}
static hipError_t do_launch(op *o) {
  u32 dims[7] = {o->g[0], o->g[1], o->g[2], o->b[0], o->b[1], o->b[2], o->dyn};
  if (launch_cb) { int rc = launch_cb(o->f->name, o->f->mod->id, dims, o->karg, o->kn); if (rc >= 0) return (hipError_t)rc; }   /* <0: fall through to the emulator */
  if (!sg_ready[o->f->wave == 64]) { problem("no emulator installed (import vgpu; vgpu.install())"); return hipErrorNotInitialized; }
  double t = now(); run_t R = {.f = o->f, .g = o->g, .b = o->b, .dyn = o->dyn, .karg = (u64)o->karg, .total = (u64)o->g[0] * o->g[1] * o->g[2], .dev = o->f->mod->dev};
  if (profiling) { pthread_mutex_lock(&mu); prof *p = prof_of(o->f); p->launches++; p->waves += R.total * ((o->b[0] * o->b[1] * o->b[2] + o->f->wave - 1) / o->f->wave); R.prof = p->n; pthread_mutex_unlock(&mu); }
  open_all(1); int nt = cfg.threads > 16 ? 16 : cfg.threads; if ((u64)nt > R.total) nt = R.total;
  if (checks) { nt = 1; hipFunction_t f = o->f; checks->launch(f->name, f->mod->id, f->mod->base, f->mod->size, f->wave, f->rsrc1, R.total, (o->b[0] * o->b[1] * o->b[2] + f->wave - 1) / f->wave, devs[R.dev].arch); }   /* vgpu_checks (4 of 4) */
  pthread_t th[16]; for (int i = 1; i < nt; i++) pthread_create(&th[i], NULL, run_worker, &R);
  run_worker(&R); for (int i = 1; i < nt; i++) pthread_join(th[i], NULL);
  if (checks) checks->end();   /* vgpu_checks */
  pthread_mutex_lock(&mu); insts += R.insts; waves_run += R.waves; launches++; emu_s += now() - t;
  if (cfg.guard) for (int i = 0; i < nal; i++) check_guards(al[i], o->f->name);
  pthread_mutex_unlock(&mu); open_all(0);
  return R.err ? fatal(R.dev, R.err) : hipSuccess;
}
/* ---------------------------------------------------------------- queues */
static hipError_t do_copy(op *o) {
  for (int k = 0; k < 2; k++) {   /* bounds against known allocations */
    const char *q = k ? o->dst : o->src; size_t n = o->rows > 1 ? (o->rows - 1) * (k ? o->dp : o->sp) + o->n : o->n; if (!q && n) return hipErrorInvalidValue;
    pthread_mutex_lock(&mu); alloc *a = find(q); int bad = a && n && (a->freed || q < a->p || q + n > a->p + a->size); pthread_mutex_unlock(&mu);
    if (bad) { char b[256]; describe(b, sizeof b, (void *)q); problem("copy of %zu bytes %s %s", n, k ? "to" : "from", b); return hipErrorInvalidValue; }
  }
  arm_segv(); hipError_t e = hipSuccess; open_all(1);
  if (sigsetjmp(jb, 1)) { char b[256]; describe(b, sizeof b, fault_addr); problem("copy: memory fault at %s", b); e = hipErrorIllegalAddress; }
  else { armed = 1; if (o->rows > 1) for (size_t r = 0; r < o->rows; r++) memmove(o->dst + r * o->dp, o->src + r * o->sp, o->n); else memmove(o->dst, o->src, o->n); armed = 0; }
  armed = 0; open_all(0); return e;
}
static hipError_t do_set(op *o) {
  size_t n = o->n * o->width; pthread_mutex_lock(&mu); alloc *a = find(o->dst); int bad = n && (!a || a->freed || o->dst < a->p || o->dst + n > a->p + a->size); pthread_mutex_unlock(&mu);
  if (bad) { char b[256]; describe(b, sizeof b, o->dst); problem("memset of %zu bytes at %s", n, b); return hipErrorInvalidValue; }
  open_all(1);
  if (o->width == 1) memset(o->dst, (int)o->val, o->n); else if (o->width == 2) for (size_t i = 0; i < o->n; i++) ((uint16_t *)o->dst)[i] = o->val; else for (size_t i = 0; i < o->n; i++) ((u32 *)o->dst)[i] = o->val;
  open_all(0); return hipSuccess;
}
static hipError_t drain(hipStream_t s, u64 upto);
static hipError_t run_op(op *o, hipStream_t s) {
  switch (o->type) {
    case OP_COPY: return do_copy(o);
    case OP_SET: return do_set(o);
    case OP_LAUNCH: return do_launch(o);
    case OP_REC: if (o->ev->magic == EMAGIC && o->ev->seq == o->seq) { o->ev->done = 1; o->ev->t = now(); } return hipSuccess;
    case OP_WAIT: return drain(o->on, o->onseq);
    case OP_CB: o->cb(s, hipSuccess, o->arg); return hipSuccess;
    case OP_HOST: o->host(o->arg); return hipSuccess;
    case OP_FREE: return mem_free(o->dst, 0, "hipFreeAsync");
  }
  return hipErrorUnknown;
}
static hipError_t drain(hipStream_t s, u64 upto) {          /* run s's queued work with seq <= upto, and what it depends on */
  hipError_t r = hipSuccess; pthread_mutex_lock(&qmu);
  while (s->head && s->head->seq <= upto) {
    op *o = s->head; s->head = o->next; if (!s->head) s->tail = NULL;
    if (s == &nullst[s->dev]) { for (hipStream_t t = streams; t; t = t->next) if (t->dev == s->dev && !(t->flags & hipStreamNonBlocking)) drain(t, o->seq); drain(&ptst[s->dev], o->seq); }
    else if (!(s->flags & hipStreamNonBlocking)) drain(&nullst[s->dev], o->seq);
    hipError_t e = run_op(o, s); free(o->karg); free(o); if (e) { if (!s->err) s->err = e; if (!r) r = e; if (!devs[s->dev].async_err) devs[s->dev].async_err = e; }
  }
  pthread_mutex_unlock(&qmu); return r;
}
static hipError_t drain_dev(int d) { hipError_t r = drain(&nullst[d], ~0ull), e = drain(&ptst[d], ~0ull); if (e) r = e; for (hipStream_t t = streams; t; t = t->next) if (t->dev == d && (e = drain(t, ~0ull))) r = e; return r; }
/* ASYNC: a device makes progress by itself. Work that nobody waited for runs after cfg.delay ms (0: never). */
static void *progress(void *a) {
  for (;;) {
    struct timespec ts = {0, 20000000}; nanosleep(&ts, NULL); if (!cfg.async || cfg.delay <= 0) continue;
    pthread_mutex_lock(&qmu); double lim = now() - cfg.delay * 1e-3;
    for (int d = 0; d < ndev; d++) { if (nullst[d].head && nullst[d].head->t0 < lim) drain(&nullst[d], ~0ull); if (ptst[d].head && ptst[d].head->t0 < lim) drain(&ptst[d], ~0ull); }
    for (hipStream_t t = streams; t;) { if (t->head && t->head->t0 < lim) { drain(t, ~0ull); t = streams; } else t = t->next; }
    pthread_mutex_unlock(&qmu);
  }
  return a;
}
static void want_progress(void) { static int on; static pid_t pid; if (on && pid == getpid()) return; on = 1; pid = getpid(); pthread_t t; pthread_attr_t at; pthread_attr_init(&at); pthread_attr_setdetachstate(&at, PTHREAD_CREATE_DETACHED); pthread_create(&t, &at, progress, NULL); }
static hipStream_t S_(hipStream_t s) { if (!s || s == (hipStream_t)1) return &nullst[cur]; if (s == (hipStream_t)2) return &ptst[cur]; for (hipStream_t t = streams; t; t = t->next) if (t == s) return s; return NULL; }
static hipError_t sync_result(int d, hipError_t r) { if (devs[d].async_err) { r = devs[d].async_err; devs[d].async_err = 0; } return r; }
static hipError_t push(op *o, hipStream_t h, int sync) {      /* sync: the host waits for it */
  hipStream_t s = S_(h); if (!s) { free(o->karg); free(o); return hipErrorInvalidHandle; }
  pthread_mutex_lock(&qmu); o->seq = ++opseq; o->next = NULL; if (cfg.async) { o->t0 = now(); want_progress(); } if (o->type == OP_REC) { o->ev->seq = o->seq; o->ev->recorded = 1; o->ev->done = 0; o->ev->s = s; }
  if (s->tail) s->tail->next = o; else s->head = o;
  s->tail = o; u64 q = o->seq; hipError_t r = hipSuccess;
  if (!cfg.async || sync) { r = drain(s, q); if (sync) r = sync_result(s->dev, r); else devs[s->dev].async_err = 0; }
  pthread_mutex_unlock(&qmu); return r;
}
static op *mk(int type) { op *o = calloc(1, sizeof *o); o->type = type; o->rows = 1; return o; }
static int pageable(const void *p) { pthread_mutex_lock(&mu); alloc *a = find(p); pthread_mutex_unlock(&mu); return !a; }
static hipError_t copy(void *d, const void *s, size_t n, hipStream_t st, int sync) {
  if (!n) return hipSuccess;
  if (!d || !s) return hipErrorInvalidValue;
  op *o = mk(OP_COPY); o->dst = d; o->src = s; o->n = n; return push(o, st, sync || (cfg.async < 2 && (pageable(d) || pageable(s))));   /* pageable copies behave synchronously */
}
static hipError_t is_dev(const void *p, size_t n, const char *who) { if (!n) return hipSuccess; pthread_mutex_lock(&mu); alloc *a = find(p); pthread_mutex_unlock(&mu); if (a) return hipSuccess; for (int i = 0; i < 1; i++) {} problem("%s: %p is not device memory", who, p); return hipErrorInvalidValue; }
static hipError_t set(void *d, u32 v, size_t n, int w, hipStream_t st, int sync) { if (!n) return hipSuccess; if (!d) return hipErrorInvalidValue; op *o = mk(OP_SET); o->dst = d; o->val = v; o->n = n; o->width = w; return push(o, st, sync); }

/* ================================================================ HIP API */
EXP hipError_t hipInit(unsigned f) { API; return ndev ? hipSuccess : hipErrorNoDevice; }
EXP hipError_t hipDriverGetVersion(int *v) { API; NEED(v); *v = 71500000; return 0; }
EXP hipError_t hipRuntimeGetVersion(int *v) { API; NEED(v); *v = 71500000; return 0; }
EXP hipError_t hipGetDeviceCount(int *n) { API; NEED(n); *n = ndev; return ndev ? hipSuccess : hipErrorNoDevice; }
EXP hipError_t hipGetDevice(int *d) { API; NEED(d); *d = cur; return 0; }
EXP hipError_t hipSetDevice(int d) { API; DEVOK(d); cur = d; return 0; }
EXP hipError_t hipSetDeviceFlags(unsigned f) { API; return 0; }
EXP hipError_t hipGetDeviceFlags(unsigned *f) { API; *f = 0; return 0; }
EXP hipError_t hipDeviceGet(hipDevice_t *d, int o) { API; NEED(d); DEVOK(o); *d = o; return 0; }
EXP hipError_t hipDeviceGetName(char *b, int n, hipDevice_t d) { API; DEVOK(d); snprintf(b, n, "%s", devs[d].name); return 0; }
EXP hipError_t hipDeviceGetUuid(hipUUID *u, hipDevice_t d) { API; DEVOK(d); memset(u, 0, sizeof *u); memcpy(u->bytes, "virtual-amd-gpu", 15); u->bytes[15] = '0' + d; return 0; }
EXP hipError_t hipDeviceTotalMem(size_t *n, hipDevice_t d) { API; DEVOK(d); *n = devs[d].total; return 0; }
static void cc(int d, int *ma, int *mi) { unsigned v = strtoul(devs[d].arch + 3, NULL, 16); if (v >= 0x1000) { *ma = (v >> 12) * 10 + (v >> 8 & 15); *mi = v & 255 ? (int)(v >> 4 & 15) : 0; } else { *ma = v >> 8; *mi = v >> 4 & 15; } }
EXP hipError_t hipDeviceComputeCapability(int *ma, int *mi, hipDevice_t d) { API; DEVOK(d); cc(d, ma, mi); return 0; }
EXP hipError_t hipDeviceGetPCIBusId(char *b, int n, int d) { API; DEVOK(d); snprintf(b, n, "0000:%02x:00.0", 3 + d); return 0; }
EXP hipError_t hipDeviceGetByPCIBusId(int *d, const char *b) { API; unsigned x; if (sscanf(b, "%*x:%x:", &x) != 1 || x < 3 || (int)x - 3 >= ndev) RET(hipErrorInvalidDevice); *d = x - 3; return 0; }
static void props(hipDeviceProp_tR0600 *p, int d) {
  dev_t_ *v = &devs[d]; memset(p, 0, sizeof *p); snprintf(p->name, sizeof p->name, "%s", v->name); snprintf(p->gcnArchName, sizeof p->gcnArchName, "%s%s", v->arch, strncmp(v->arch, "gfx9", 4) ? "" : ":sramecc+:xnack-");
  memcpy(p->uuid.bytes, "virtual-amd-gpu", 15); p->uuid.bytes[15] = '0' + d; p->totalGlobalMem = v->total; p->sharedMemPerBlock = 65536; p->regsPerBlock = 65536; p->warpSize = v->wave; p->memPitch = 2147483647; p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = p->maxThreadsDim[2] = 1024; p->maxGridSize[0] = 2147483647; p->maxGridSize[1] = p->maxGridSize[2] = 65536; p->clockRate = 2400000; p->totalConstMem = 2147483647; cc(d, &p->major, &p->minor);
  p->textureAlignment = 256; p->texturePitchAlignment = 256; p->multiProcessorCount = v->cus; p->integrated = v->integrated; p->canMapHostMemory = 1; p->concurrentKernels = 1; p->pciBusID = 3 + d; p->asyncEngineCount = 2; p->unifiedAddressing = 1;
  p->memoryClockRate = 1250000; p->memoryBusWidth = 320; p->l2CacheSize = 6291456; p->maxThreadsPerMultiProcessor = 2048; p->streamPrioritiesSupported = 1; p->sharedMemPerMultiprocessor = 65536; p->regsPerMultiprocessor = 65536; p->managedMemory = 1; p->hostNativeAtomicSupported = 0;
  p->concurrentManagedAccess = 0; p->cooperativeLaunch = 1; p->sharedMemPerBlockOptin = 65536; p->maxBlocksPerMultiProcessor = 2; p->hostRegisterSupported = 1; p->memoryPoolsSupported = 1; p->maxSharedMemoryPerMultiProcessor = 65536; p->clockInstructionRate = 100000;
}
EXP hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600 *p, int d) { API; NEED(p); DEVOK(d); props(p, d); return 0; }
EXP hipError_t hipDeviceGetAttribute(int *v, hipDeviceAttribute_t a, int d) {
  API; NEED(v); DEVOK(d); hipDeviceProp_tR0600 p; props(&p, d);
  switch ((int)a) {
    case hipDeviceAttributeWarpSize: *v = p.warpSize; break; case hipDeviceAttributeMaxThreadsPerBlock: *v = 1024; break; case hipDeviceAttributeMaxBlockDimX: case hipDeviceAttributeMaxBlockDimY: case hipDeviceAttributeMaxBlockDimZ: *v = 1024; break;
    case hipDeviceAttributeMaxGridDimX: *v = p.maxGridSize[0]; break; case hipDeviceAttributeMaxGridDimY: case hipDeviceAttributeMaxGridDimZ: *v = 65536; break; case hipDeviceAttributeMaxSharedMemoryPerBlock: case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor: case hipDeviceAttributeSharedMemPerBlockOptin: *v = 65536; break;
    case hipDeviceAttributeTotalConstantMemory: *v = 2147483647; break; case hipDeviceAttributeMaxRegistersPerBlock: case hipDeviceAttributeMaxRegistersPerMultiprocessor: *v = 65536; break; case hipDeviceAttributeClockRate: *v = p.clockRate; break; case hipDeviceAttributeWallClockRate: *v = 100000; break;
    case hipDeviceAttributeMemoryClockRate: *v = p.memoryClockRate; break; case hipDeviceAttributeMemoryBusWidth: *v = p.memoryBusWidth; break; case hipDeviceAttributeMultiprocessorCount: *v = p.multiProcessorCount; break; case hipDeviceAttributeL2CacheSize: *v = p.l2CacheSize; break;
    case hipDeviceAttributeMaxThreadsPerMultiProcessor: *v = 2048; break; case hipDeviceAttributeComputeCapabilityMajor: *v = p.major; break; case hipDeviceAttributeComputeCapabilityMinor: *v = p.minor; break; case hipDeviceAttributePciBusId: *v = p.pciBusID; break; case hipDeviceAttributePciDeviceId: *v = 0; break;
    case hipDeviceAttributeIntegrated: *v = p.integrated; break; case hipDeviceAttributeMaxPitch: *v = 2147483647; break; case hipDeviceAttributeTextureAlignment: *v = 256; break; case hipDeviceAttributeMaxBlocksPerMultiProcessor: *v = 2; break; case hipDeviceAttributeAsyncEngineCount: *v = 2; break;
    case hipDeviceAttributeCanMapHostMemory: case hipDeviceAttributeConcurrentKernels: case hipDeviceAttributeUnifiedAddressing: case hipDeviceAttributeManagedMemory: case hipDeviceAttributeCooperativeLaunch: case hipDeviceAttributeHostRegisterSupported: case hipDeviceAttributeStreamPrioritiesSupported: case hipDeviceAttributeMemoryPoolsSupported: *v = 1; break;
    default: *v = 0;
  }
  return 0;
}
EXP hipError_t hipDeviceCanAccessPeer(int *v, int d, int p) { API; DEVOK(d); DEVOK(p); *v = d != p && !devs[d].integrated && !devs[p].integrated; return 0; }
EXP hipError_t hipDeviceEnablePeerAccess(int p, unsigned f) { API; DEVOK(p); if (p == cur) RET(hipErrorInvalidDevice); return 0; }
EXP hipError_t hipDeviceDisablePeerAccess(int p) { API; DEVOK(p); return 0; }
/* contexts: the handle of device d's primary context is &ctxs[d] */
EXP hipError_t hipDevicePrimaryCtxRetain(hipCtx_t *c, hipDevice_t d) { API; DEVOK(d); ctxs[d]++; *c = (hipCtx_t)&ctxs[d]; return 0; }
EXP hipError_t hipDevicePrimaryCtxRelease(hipDevice_t d) { API; DEVOK(d); if (ctxs[d]) ctxs[d]--; return 0; }
EXP hipError_t hipDevicePrimaryCtxReset(hipDevice_t d) { API_NS; DEVOK(d); drain_dev(d); devs[d].sticky = devs[d].async_err = 0; return 0; }
EXP hipError_t hipDevicePrimaryCtxGetState(hipDevice_t d, unsigned *f, int *a) { API; DEVOK(d); *f = 0; *a = ctxs[d] > 0; return 0; }
EXP hipError_t hipDevicePrimaryCtxSetFlags(hipDevice_t d, unsigned f) { API; return 0; }
EXP hipError_t hipCtxGetCurrent(hipCtx_t *c) { API; *c = (hipCtx_t)&ctxs[cur]; return 0; }
EXP hipError_t hipCtxSetCurrent(hipCtx_t c) { API; int d = (int *)c - ctxs; if (c) { DEVOK(d); cur = d; } return 0; }
EXP hipError_t hipCtxPushCurrent(hipCtx_t c) { API; int d = (int *)c - ctxs; DEVOK(d); cur = d; return 0; }
EXP hipError_t hipCtxPopCurrent(hipCtx_t *c) { API; if (c) *c = (hipCtx_t)&ctxs[cur]; return 0; }
EXP hipError_t hipCtxGetDevice(hipDevice_t *d) { API; *d = cur; return 0; }
EXP hipError_t hipCtxSynchronize(void) { API; RET(sync_result(cur, drain_dev(cur))); }
EXP hipError_t hipDeviceSynchronize(void) { API; RET(sync_result(cur, drain_dev(cur))); }
EXP hipError_t hipDeviceReset(void) {
  API_NS; drain_dev(cur); pthread_mutex_lock(&mu);
  for (int i = nal - 1; i >= 0; i--) if (!al[i]->freed && al[i]->dev == cur && al[i]->kind != K_HOST) { void *p = al[i]->p; mem_free(p, 0, "hipDeviceReset"); i = nal; }
  devs[cur].sticky = devs[cur].async_err = 0; pthread_mutex_unlock(&mu); return 0;
}
EXP hipError_t hipGetLastError(void) { static fn_ *f; enter(__func__, &f); hipError_t e = last; last = 0; return e; }
EXP hipError_t hipPeekAtLastError(void) { return last; }
#define ERRS(X) X(hipSuccess, "no error") X(hipErrorInvalidValue, "invalid argument") X(hipErrorOutOfMemory, "out of memory") X(hipErrorNotInitialized, "initialization error") X(hipErrorDeinitialized, "driver shutting down") \
  X(hipErrorInvalidConfiguration, "invalid configuration argument") X(hipErrorInvalidPitchValue, "invalid pitch argument") X(hipErrorInvalidSymbol, "invalid device symbol") X(hipErrorInvalidDevicePointer, "invalid device pointer") X(hipErrorInvalidMemcpyDirection, "invalid copy direction for memcpy") X(hipErrorInsufficientDriver, "driver version is insufficient for runtime version") \
  X(hipErrorNoDevice, "no ROCm-capable device is detected") X(hipErrorInvalidDevice, "invalid device ordinal") X(hipErrorInvalidImage, "device kernel image is invalid") X(hipErrorInvalidContext, "invalid device context") X(hipErrorMapFailed, "mapping of buffer object failed") X(hipErrorNoBinaryForGpu, "no kernel image is available for execution on the device") \
  X(hipErrorFileNotFound, "file not found") X(hipErrorInvalidHandle, "invalid resource handle") X(hipErrorNotFound, "named symbol not found") X(hipErrorNotReady, "device not ready") X(hipErrorIllegalAddress, "an illegal memory access was encountered") X(hipErrorLaunchOutOfResources, "too many resources requested for launch") \
  X(hipErrorLaunchTimeOut, "the launch timed out and was terminated") X(hipErrorPeerAccessAlreadyEnabled, "peer access is already enabled") X(hipErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped") X(hipErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region") \
  X(hipErrorLaunchFailure, "unspecified launch failure") X(hipErrorNotSupported, "operation not supported") X(hipErrorAssert, "device-side assert triggered") X(hipErrorECCNotCorrectable, "uncorrectable ECC error encountered") X(hipErrorIllegalState, "the operation cannot be performed in the present state") X(hipErrorUnknown, "unknown error")
static int err_code(const char *s) {
#define X(n, t) if (!strcmp(s, #n)) return n;
  ERRS(X)
#undef X
  return atoi(s);
}
EXP const char *hipGetErrorName(hipError_t e) { switch ((int)e) {
#define X(n, t) case n: return #n;
  ERRS(X)
#undef X
  } return "hipErrorUnknown"; }
EXP const char *hipGetErrorString(hipError_t e) { switch ((int)e) {
#define X(n, t) case n: return t;
  ERRS(X)
#undef X
  } return "unknown error"; }
EXP hipError_t hipDrvGetErrorName(hipError_t e, const char **s) { *s = hipGetErrorName(e); return 0; }
EXP hipError_t hipDrvGetErrorString(hipError_t e, const char **s) { *s = hipGetErrorString(e); return 0; }
/* memory */
EXP hipError_t hipMalloc(void **p, size_t n) { API; NEED(p); RET(mem_new(p, n, K_DEV, 0)); }
EXP hipError_t hipExtMallocWithFlags(void **p, size_t n, unsigned f) { API; NEED(p); RET(mem_new(p, n, K_DEV, f)); }
EXP hipError_t hipMallocManaged(void **p, size_t n, unsigned f) { API; NEED(p); RET(mem_new(p, n, K_MANAGED, f)); }
EXP hipError_t hipMallocAsync(void **p, size_t n, hipStream_t s) { API; NEED(p && S_(s)); RET(mem_new(p, n, K_DEV, 0)); }
EXP hipError_t hipMallocPitch(void **p, size_t *pitch, size_t w, size_t h) { API; NEED(p && pitch); *pitch = UP(w, 128); RET(mem_new(p, *pitch * h, K_DEV, 0)); }
EXP hipError_t hipFree(void *p) { API; if (p) { for (int d = 0; d < ndev; d++) drain_dev(d); } RET(mem_free(p, 0, "hipFree")); }
EXP hipError_t hipFreeAsync(void *p, hipStream_t s) { API; op *o = mk(OP_FREE); o->dst = p; RET(push(o, s, 0)); }
EXP hipError_t hipHostMalloc(void **p, size_t n, unsigned f) { API; NEED(p); RET(mem_new(p, n, K_HOST, f)); }
EXP hipError_t hipHostAlloc(void **p, size_t n, unsigned f) { API; NEED(p); RET(mem_new(p, n, K_HOST, f)); }
EXP hipError_t hipMemAllocHost(void **p, size_t n) { API; NEED(p); RET(mem_new(p, n, K_HOST, 0)); }
EXP hipError_t hipMallocHost(void **p, size_t n) { API; NEED(p); RET(mem_new(p, n, K_HOST, 0)); }
EXP hipError_t hipHostFree(void *p) { API; for (int d = 0; d < ndev; d++) drain_dev(d); RET(mem_free(p, 1, "hipHostFree")); }
EXP hipError_t hipFreeHost(void *p) { API; RET(mem_free(p, 1, "hipFreeHost")); }
EXP hipError_t hipHostRegister(void *p, size_t n, unsigned f) {
  API; NEED(p && n); pthread_mutex_lock(&mu); if (find(p)) { pthread_mutex_unlock(&mu); RET(hipErrorHostMemoryAlreadyRegistered); }
  if (nreg == 4096) { pthread_mutex_unlock(&mu); RET(hipErrorOutOfMemory); }
  alloc *a = calloc(1, sizeof *a); a->p = a->map = p; a->size = a->maplen = n; a->kind = K_REG; a->dev = cur; a->id = next_id++; a->flags = f; reg_[nreg++] = a; pthread_mutex_unlock(&mu); return 0;
}
EXP hipError_t hipHostUnregister(void *p) { API; for (int d = 0; d < ndev; d++) drain_dev(d); pthread_mutex_lock(&mu); for (int i = 0; i < nreg; i++) if (reg_[i]->p == p) { free(reg_[i]); reg_[i] = reg_[--nreg]; pthread_mutex_unlock(&mu); return 0; } pthread_mutex_unlock(&mu); RET(hipErrorHostMemoryNotRegistered); }
EXP hipError_t hipHostGetDevicePointer(void **d, void *h, unsigned f) { API; NEED(d && h); alloc *a = find_live(h); if (!a || a->kind == K_DEV) RET(hipErrorInvalidValue); *d = h; return 0; }
EXP hipError_t hipHostGetFlags(unsigned *f, void *p) { API; alloc *a = find_live(p); if (!a) RET(hipErrorInvalidValue); *f = a->flags; return 0; }
EXP hipError_t hipMemGetInfo(size_t *f, size_t *t) { API; dev_t_ *d = &devs[cur]; size_t u = d->used + d->other; if (f) *f = u > d->total ? 0 : d->total - u; if (t) *t = d->total; return 0; }
EXP hipError_t hipMemGetAddressRange(hipDeviceptr_t *b, size_t *n, hipDeviceptr_t p) { API; pthread_mutex_lock(&mu); alloc *a = find_live(p); pthread_mutex_unlock(&mu); if (!a) RET(hipErrorNotFound); if (b) *b = a->p; if (n) *n = a->size; return 0; }
EXP hipError_t hipMemPtrGetInfo(void *p, size_t *n) { API; alloc *a = find_live(p); if (!a) RET(hipErrorInvalidValue); *n = a->size; return 0; }
static int mtype(alloc *a) { return a->kind == K_DEV ? hipMemoryTypeDevice : a->kind == K_MANAGED ? hipMemoryTypeManaged : hipMemoryTypeHost; }
EXP hipError_t hipPointerGetAttributes(hipPointerAttribute_t *r, const void *p) {
  API; NEED(r); alloc *a = find_live(p); memset(r, 0, sizeof *r); if (!a) { r->type = hipMemoryTypeUnregistered; r->device = -2; return p ? hipSuccess : (last = hipErrorInvalidValue); }
  r->type = mtype(a); r->device = a->dev; r->devicePointer = (void *)p; r->hostPointer = a->kind == K_DEV ? NULL : (void *)p; r->isManaged = a->kind == K_MANAGED; r->allocationFlags = a->flags; return 0;
}
EXP hipError_t hipPointerGetAttribute(void *out, hipPointer_attribute at, hipDeviceptr_t p) {
  API; NEED(out); alloc *a = find_live(p); if (!a) RET(hipErrorInvalidValue);
  switch ((int)at) {
    case HIP_POINTER_ATTRIBUTE_CONTEXT: *(void **)out = &ctxs[a->dev]; break; case HIP_POINTER_ATTRIBUTE_MEMORY_TYPE: *(u32 *)out = mtype(a); break; case HIP_POINTER_ATTRIBUTE_DEVICE_POINTER: *(void **)out = p; break;
    case HIP_POINTER_ATTRIBUTE_HOST_POINTER: if (a->kind == K_DEV) RET(hipErrorInvalidValue); *(void **)out = p; break; case HIP_POINTER_ATTRIBUTE_BUFFER_ID: *(u64 *)out = a->id; break; case HIP_POINTER_ATTRIBUTE_IS_MANAGED: *(u32 *)out = a->kind == K_MANAGED; break;
    case HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = a->dev; break; case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(void **)out = a->p; break; case HIP_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = a->size; break; case HIP_POINTER_ATTRIBUTE_MAPPED: *(u32 *)out = 1; break;
    default: RET(hipErrorNotSupported);
  }
  return 0;
}
/* copies */
EXP hipError_t hipMemcpy(void *d, const void *s, size_t n, hipMemcpyKind k) { API; RET(copy(d, s, n, NULL, 1)); }
EXP hipError_t hipMemcpyAsync(void *d, const void *s, size_t n, hipMemcpyKind k, hipStream_t st) { API; RET(copy(d, s, n, st, 0)); }
EXP hipError_t hipMemcpyWithStream(void *d, const void *s, size_t n, hipMemcpyKind k, hipStream_t st) { API; RET(copy(d, s, n, st, 1)); }
#define DEVP(p, n) do { hipError_t e__ = is_dev(p, n, __func__); if (e__) RET(e__); } while (0)
EXP hipError_t hipMemcpyHtoD(hipDeviceptr_t d, void *s, size_t n) { API; DEVP(d, n); RET(copy(d, s, n, NULL, 1)); }
EXP hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t d, void *s, size_t n, hipStream_t st) { API; DEVP(d, n); RET(copy(d, s, n, st, 0)); }
EXP hipError_t hipMemcpyDtoH(void *d, hipDeviceptr_t s, size_t n) { API; DEVP(s, n); RET(copy(d, s, n, NULL, 1)); }
EXP hipError_t hipMemcpyDtoHAsync(void *d, hipDeviceptr_t s, size_t n, hipStream_t st) { API; DEVP(s, n); RET(copy(d, s, n, st, 0)); }
EXP hipError_t hipMemcpyDtoD(hipDeviceptr_t d, hipDeviceptr_t s, size_t n) { API; DEVP(d, n); DEVP(s, n); RET(copy(d, s, n, NULL, 1)); }
EXP hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t d, hipDeviceptr_t s, size_t n, hipStream_t st) { API; DEVP(d, n); DEVP(s, n); RET(copy(d, s, n, st, 0)); }
EXP hipError_t hipMemcpyPeer(void *d, int dd, const void *s, int sd, size_t n) { API; RET(copy(d, s, n, NULL, 1)); }
EXP hipError_t hipMemcpyPeerAsync(void *d, int dd, const void *s, int sd, size_t n, hipStream_t st) { API; RET(copy(d, s, n, st, 0)); }
static hipError_t copy2d(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, hipStream_t st, int sync) { if (!w || !h) return hipSuccess; op *o = mk(OP_COPY); o->dst = d; o->src = s; o->n = w; o->rows = h; o->dp = dp; o->sp = sp; return push(o, st, sync || pageable(d) || pageable(s)); }
EXP hipError_t hipMemcpy2D(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, hipMemcpyKind k) { API; RET(copy2d(d, dp, s, sp, w, h, NULL, 1)); }
EXP hipError_t hipMemcpy2DAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, hipMemcpyKind k, hipStream_t st) { API; RET(copy2d(d, dp, s, sp, w, h, st, 0)); }
EXP hipError_t hipMemset(void *d, int v, size_t n) { API; RET(set(d, (u8)v, n, 1, NULL, 1)); }
EXP hipError_t hipMemsetAsync(void *d, int v, size_t n, hipStream_t s) { API; RET(set(d, (u8)v, n, 1, s, 0)); }
EXP hipError_t hipMemsetD8(hipDeviceptr_t d, unsigned char v, size_t n) { API; RET(set(d, v, n, 1, NULL, 1)); }
EXP hipError_t hipMemsetD8Async(hipDeviceptr_t d, unsigned char v, size_t n, hipStream_t s) { API; RET(set(d, v, n, 1, s, 0)); }
EXP hipError_t hipMemsetD16(hipDeviceptr_t d, unsigned short v, size_t n) { API; RET(set(d, v, n, 2, NULL, 1)); }
EXP hipError_t hipMemsetD16Async(hipDeviceptr_t d, unsigned short v, size_t n, hipStream_t s) { API; RET(set(d, v, n, 2, s, 0)); }
EXP hipError_t hipMemsetD32(hipDeviceptr_t d, int v, size_t n) { API; RET(set(d, (u32)v, n, 4, NULL, 1)); }
EXP hipError_t hipMemsetD32Async(hipDeviceptr_t d, int v, size_t n, hipStream_t s) { API; RET(set(d, (u32)v, n, 4, s, 0)); }
/* inter-process memory: not offered by the virtual device */
EXP hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t *h, void *p) { API; RET(hipErrorNotSupported); }
EXP hipError_t hipIpcOpenMemHandle(void **p, hipIpcMemHandle_t h, unsigned f) { API; RET(hipErrorNotSupported); }
EXP hipError_t hipIpcCloseMemHandle(void *p) { API; RET(hipErrorNotSupported); }
/* streams */
static hipError_t mkstream(hipStream_t *s, unsigned f, int pr) { hipStream_t x = calloc(1, sizeof *x); x->magic = SMAGIC; x->flags = f; x->dev = cur; x->prio = pr; pthread_mutex_lock(&qmu); x->next = streams; streams = x; pthread_mutex_unlock(&qmu); *s = x; return 0; }
EXP hipError_t hipStreamCreate(hipStream_t *s) { API; NEED(s); return mkstream(s, 0, 0); }
EXP hipError_t hipStreamCreateWithFlags(hipStream_t *s, unsigned f) { API; NEED(s && f <= 1); return mkstream(s, f, 0); }
EXP hipError_t hipStreamCreateWithPriority(hipStream_t *s, unsigned f, int p) { API; NEED(s); return mkstream(s, f, p); }
EXP hipError_t hipDeviceGetStreamPriorityRange(int *l, int *h) { API; if (l) *l = 1; if (h) *h = -1; return 0; }
EXP hipError_t hipStreamDestroy(hipStream_t s) { API; if (!s || s == (hipStream_t)1 || s == (hipStream_t)2 || !S_(s)) RET(hipErrorInvalidHandle); drain(s, ~0ull); pthread_mutex_lock(&qmu); for (hipStream_t *p = &streams; *p; p = &(*p)->next) if (*p == s) { *p = s->next; break; } pthread_mutex_unlock(&qmu); s->magic = 0; free(s); return 0; }
EXP hipError_t hipStreamSynchronize(hipStream_t h) { API; hipStream_t s = S_(h); if (!s) RET(hipErrorInvalidHandle); hipError_t r; if (s == &nullst[cur]) { op *o = mk(OP_HOST); o->host = (void (*)(void *))(void *)free; r = push(o, NULL, 1); } else r = sync_result(s->dev, drain(s, ~0ull)); RET(r); }
EXP hipError_t hipStreamQuery(hipStream_t h) { API; hipStream_t s = S_(h); if (!s) RET(hipErrorInvalidHandle); if (!s->head) return hipSuccess; static __thread int polls; if (++polls % 8 == 0) drain(s, ~0ull); return hipErrorNotReady; }
EXP hipError_t hipStreamGetFlags(hipStream_t h, unsigned *f) { API; hipStream_t s = S_(h); if (!s) RET(hipErrorInvalidHandle); *f = s->flags; return 0; }
EXP hipError_t hipStreamGetPriority(hipStream_t h, int *p) { API; hipStream_t s = S_(h); if (!s) RET(hipErrorInvalidHandle); *p = s->prio; return 0; }
EXP hipError_t hipStreamGetDevice(hipStream_t h, hipDevice_t *d) { API; hipStream_t s = S_(h); if (!s) RET(hipErrorInvalidHandle); *d = s->dev; return 0; }
EXP hipError_t hipStreamWaitEvent(hipStream_t h, hipEvent_t e, unsigned f) { API; if (!e || e->magic != EMAGIC) RET(hipErrorInvalidHandle); if (!e->recorded) return 0; op *o = mk(OP_WAIT); o->on = e->s; o->onseq = e->seq; RET(push(o, h, 0)); }
EXP hipError_t hipStreamAddCallback(hipStream_t h, hipStreamCallback_t cb, void *u, unsigned f) { API; NEED(cb); op *o = mk(OP_CB); o->cb = cb; o->arg = u; RET(push(o, h, 0)); }
EXP hipError_t hipLaunchHostFunc(hipStream_t h, hipHostFn_t fn, void *u) { API; NEED(fn); op *o = mk(OP_HOST); o->host = fn; o->arg = u; RET(push(o, h, 0)); }
/* events */
EXP hipError_t hipEventCreateWithFlags(hipEvent_t *e, unsigned f) { API; NEED(e); hipEvent_t x = calloc(1, sizeof *x); x->magic = EMAGIC; x->flags = f; *e = x; return 0; }
EXP hipError_t hipEventCreate(hipEvent_t *e) { API; NEED(e); hipEvent_t x = calloc(1, sizeof *x); x->magic = EMAGIC; *e = x; return 0; }
#define EVOK(e) do { if (!(e) || (e)->magic != EMAGIC) RET(hipErrorInvalidHandle); } while (0)
EXP hipError_t hipEventDestroy(hipEvent_t e) { API; EVOK(e); if (e->recorded && !e->done) drain(e->s, e->seq); e->magic = 0; /* struct kept: late queue entries may still name it */ return 0; }
EXP hipError_t hipEventRecord(hipEvent_t e, hipStream_t s) { API; EVOK(e); op *o = mk(OP_REC); o->ev = e; RET(push(o, s, 0)); }
EXP hipError_t hipEventSynchronize(hipEvent_t e) { API; EVOK(e); if (!e->recorded || e->done) return 0; int d = e->s->dev; RET(sync_result(d, drain(e->s, e->seq))); }
EXP hipError_t hipEventQuery(hipEvent_t e) { API; EVOK(e); if (!e->recorded || e->done) return hipSuccess; static __thread int polls; if (++polls % 8 == 0) drain(e->s, e->seq); return hipErrorNotReady; }
EXP hipError_t hipEventElapsedTime(float *ms, hipEvent_t a, hipEvent_t b) { API; NEED(ms); EVOK(a); EVOK(b); if (!a->recorded || !b->recorded || ((a->flags | b->flags) & hipEventDisableTiming)) RET(hipErrorInvalidHandle); if (!a->done || !b->done) return hipErrorNotReady; *ms = (float)((b->t - a->t) * 1e3); return 0; }
/* modules */
static struct ihipModule_t *mods[8192]; static u64 nmods = 1;
static size_t elf_size(const u8 *e) {   /* the image's length is not an argument: where its last header, segment or section ends */
  u64 ph, sh, o, z; uint16_t n[4]; memcpy(&ph, e + 0x20, 8); memcpy(&sh, e + 0x28, 8); memcpy(n, e + 0x36, 8); size_t end = 64;
#define END(x) do { if ((x) > end) end = (x); } while (0)
  END(ph + (u64)n[0] * n[1]); END(sh + (u64)n[2] * n[3]);
  for (int i = 0; i < n[1]; i++) { memcpy(&o, e + ph + i * n[0] + 8, 8); memcpy(&z, e + ph + i * n[0] + 32, 8); END(o + z); }
  for (int i = 0; i < n[3]; i++) { u32 t; const u8 *h = e + sh + i * n[2]; memcpy(&t, h + 4, 4); memcpy(&o, h + 24, 8); memcpy(&z, h + 32, 8); if (t && t != 8 /* no bits */) END(o + z); }
  return end;
}
/* a bundle of clang's: the code object for the current device's architecture, or NULL */
static const u8 *unbundle(const u8 *b) {
  u64 n, o, z, l; memcpy(&n, b + 24, 8); const u8 *p = b + 32; const char *a = devs[cur].arch; size_t al_ = strlen(a);
  for (; n--; p += 24 + l) { memcpy(&o, p, 8); memcpy(&z, p + 8, 8); memcpy(&l, p + 16, 8); const char *q = z ? memmem(p + 24, l, a, al_) : NULL; if (q && (q + al_ == (char *)p + 24 + l || q[al_] == ':')) return b + o; }
  return NULL;
}
EXP hipError_t hipModuleLoadData(hipModule_t *m, const void *img) {
  API; NEED(m && img); if (!memcmp(img, "__CLANG_OFFLOAD_BUNDLE__", 24) && !(img = unbundle(img))) RET(hipErrorNoBinaryForGpu); if (memcmp(img, "\177ELF", 4) || !load_cb) RET(memcmp(img, "\177ELF", 4) ? hipErrorInvalidImage : hipErrorNotInitialized);
  u32 fl; memcpy(&fl, (u8 *)img + 0x30, 4); hipModule_t x = calloc(1, sizeof *x); pthread_mutex_lock(&mu); if (nmods == 8192) { pthread_mutex_unlock(&mu); free(x); RET(hipErrorOutOfMemory); }
  x->id = nmods; mods[nmods++] = x; x->dev = cur; pthread_mutex_unlock(&mu);
  int rc = load_cb(x->id, img, elf_size(img)); if (rc) { mods[x->id] = NULL; free(x); RET((hipError_t)rc); } *m = x; return 0;
}
EXP hipError_t hipModuleLoadDataEx(hipModule_t *m, const void *img, unsigned n, hipJitOption *o, void **v) { return hipModuleLoadData(m, img); }
EXP hipError_t hipModuleLoad(hipModule_t *m, const char *path) { FILE *f = fopen(path, "rb"); if (!f) RET(hipErrorFileNotFound); fseek(f, 0, SEEK_END); long n = ftell(f); rewind(f); char *b = malloc(n + 1); size_t g = fread(b, 1, n, f); fclose(f); hipError_t e = g == (size_t)n && n > 64 ? hipModuleLoadData(m, b) : hipErrorInvalidImage; free(b); return e; }
EXP void vgpu_recompile(u64 id) { if (id && id < nmods && mods[id]) memset(mods[id]->slots, 0, (mods[id]->size / 4 + 1) * sizeof(slot)); }   /* vgpu_checks: its code was patched */
static int mod_ok(hipModule_t m) { for (u64 i = 1; i < nmods; i++) if (mods[i] == m && m) return 1; return 0; }
EXP hipError_t hipModuleUnload(hipModule_t m) { API; if (!mod_ok(m)) RET(hipErrorInvalidHandle); for (int d = 0; d < ndev; d++) drain_dev(d); mods[m->id] = NULL; if (unload_cb) unload_cb(m->id); pthread_mutex_lock(&mu); prof_drop(m->id); pthread_mutex_unlock(&mu); free(m->slots); m->slots = NULL; return 0; }
/* called by the loader (Python) while hipModuleLoadData runs */
EXP int vgpu_mod_code(u64 id, u64 base, u64 size) { hipModule_t m = mods[id]; m->base = base; m->size = size; m->slots = calloc(size / 4 + 1, sizeof(slot)); return m->dev; }
EXP void vgpu_mod_kernel(u64 id, const char *name, u64 entry, const u32 *v /*rsrc1,rsrc2,rsrc3,props,lds,priv,kargsz,vgpr,sgpr,maxwg,wave*/, int nargs, const u32 *args) {
  hipModule_t m = mods[id]; if (m->nk == 1024) return; hipFunction_t f = calloc(1, sizeof *f); f->name = strdup(name); f->mod = m; f->entry = entry; memcpy(&f->rsrc1, v, 11 * 4); f->nargs = nargs; f->a = calloc(nargs + 1, sizeof(karg)); memcpy(f->a, args, nargs * sizeof(karg)); m->k[m->nk++] = f;
}
EXP void vgpu_mod_symbol(u64 id, const char *name, u64 addr, u64 size) { hipModule_t m = mods[id]; m->s = realloc(m->s, (m->ns + 1) * sizeof(sym_)); m->s[m->ns++] = (sym_){strdup(name), addr, size}; }
EXP void vgpu_sgpr_template(int wave, const u32 *t) { memcpy(sg_template[wave == 64], t, sizeof sg_template[0]); sg_ready[wave == 64] = 1; }
EXP void vgpu_callbacks(load_cb_t l, compile_cb_t c, unload_cb_t u) { load_cb = l; compile_cb = c; unload_cb = u; }
EXP void vgpu_launch_hook(launch_cb_t l) { launch_cb = l; }
EXP hipError_t hipModuleGetFunction(hipFunction_t *f, hipModule_t m, const char *n) { API; NEED(f && n); if (!mod_ok(m)) RET(hipErrorInvalidHandle); for (int i = 0; i < m->nk; i++) if (!strcmp(m->k[i]->name, n)) { *f = m->k[i]; return 0; } RET(hipErrorNotFound); }
EXP hipError_t hipModuleGetGlobal(hipDeviceptr_t *p, size_t *n, hipModule_t m, const char *s) { API; if (!mod_ok(m)) RET(hipErrorInvalidHandle); for (int i = 0; i < m->ns; i++) if (!strcmp(m->s[i].name, s)) { if (p) *p = (void *)m->s[i].addr; if (n) *n = m->s[i].size; return 0; } RET(hipErrorNotFound); }
EXP hipError_t hipFuncGetAttribute(int *v, hipFunction_attribute a, hipFunction_t f) {
  API; NEED(v && f);
  switch ((int)a) {
    case HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *v = f->maxwg; break; case HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *v = f->lds; break; case HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *v = 0; break; case HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *v = f->priv; break;
    case HIP_FUNC_ATTRIBUTE_NUM_REGS: *v = f->vgpr; break; case HIP_FUNC_ATTRIBUTE_PTX_VERSION: case HIP_FUNC_ATTRIBUTE_BINARY_VERSION: *v = 110; break; case HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *v = 65536 - (int)f->lds; break; default: *v = 0;
  }
  return 0;
}
EXP hipError_t hipFuncSetAttribute(const void *f, hipFuncAttribute a, int v) { API; return 0; }
EXP hipError_t hipFuncSetCacheConfig(const void *f, hipFuncCache_t c) { API; return 0; }
static hipError_t launch(hipFunction_t f, u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz, u32 dyn, hipStream_t st, void **kp, void **ex) {
  if (!f || !mod_ok(f->mod)) return hipErrorInvalidHandle;
  if (!gx || !gy || !gz || !bx || !by || !bz) return hipErrorInvalidConfiguration;
  if ((u64)bx * by * bz > 1024 || (u64)bx * by * bz > f->maxwg || bx > 1024 || by > 1024 || bz > 1024) return hipErrorInvalidConfiguration;
  if (f->lds + dyn > 65536) return hipErrorInvalidConfiguration;
  if (gy > 65536 * 32u || gz > 65536 * 32u) return hipErrorInvalidConfiguration;
  if (f->mod->dev != cur) { problem("kernel %s of device %d launched while device %d is current", f->name, f->mod->dev, cur); return hipErrorInvalidHandle; }
  op *o = mk(OP_LAUNCH); o->f = f; o->kn = f->kargsz > 256 ? UP(f->kargsz, 64) : 256; o->karg = aligned_alloc(64, o->kn); memset(o->karg, 0, o->kn); u32 d[6] = {gx, gy, gz, bx, by, bz}; memcpy(o->g, d, 12); memcpy(o->b, d + 3, 12); o->dyn = dyn;
  if (ex && !kp) { u8 *b = NULL; size_t n = 0; for (int i = 0; ex[i] != HIP_LAUNCH_PARAM_END && i < 8; i += 2) { if (ex[i] == HIP_LAUNCH_PARAM_BUFFER_POINTER) b = ex[i + 1]; else if (ex[i] == HIP_LAUNCH_PARAM_BUFFER_SIZE) n = *(size_t *)ex[i + 1]; } if (n > o->kn || (n && !b)) { free(o->karg); free(o); return hipErrorInvalidValue; } memcpy(o->karg, b, n); }
  else { int j = 0; for (int i = 0; i < f->nargs; i++) if (!f->a[i].kind) { if (!kp || !kp[j]) { free(o->karg); free(o); return hipErrorInvalidValue; } memcpy(o->karg + f->a[i].off, kp[j++], f->a[i].size); } }
  for (int i = 0; i < f->nargs; i++) { u32 k = f->a[i].kind; u8 *q = o->karg + f->a[i].off; uint16_t h;
    if (k >= 1 && k <= 3) memcpy(q, &d[k - 1], 4); else if (k >= 4 && k <= 6) { h = d[k - 1]; memcpy(q, &h, 2); } else if (k == 13) { h = gz > 1 || bz > 1 ? 3 : gy > 1 || by > 1 ? 2 : 1; memcpy(q, &h, 2); } else if (k == 14) memcpy(q, &dyn, 4); }
  return push(o, st, 0);
}
EXP hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned dyn, hipStream_t st, void **kp, void **ex) { API; RET(launch(f, gx, gy, gz, bx, by, bz, dyn, st, kp, ex)); }
EXP hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned dyn, hipStream_t st, void **kp) { API; if ((u64)gx * gy * gz > 1) { problem("cooperative launch of more than one workgroup is not emulated"); RET(hipErrorNotSupported); } RET(launch(f, gx, gy, gz, bx, by, bz, dyn, st, kp, NULL)); }
static int occ(hipFunction_t f, int b, size_t dyn) { if (b < 1) return 0; int w = (b + f->wave - 1) / f->wave, v = f->vgpr ? f->vgpr : 1, per = 1536 / (int)UP(v, 24); if (per > 16) per = 16; int n = per * 4 / w, l = f->lds + dyn ? 65536 / (f->lds + dyn) : 32; return n < l ? n : l; }
EXP hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *n, hipFunction_t f, int b, size_t d) { API; NEED(n && f); *n = occ(f, b, d); return 0; }
EXP hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, hipFunction_t f, int b, size_t d, unsigned fl) { API; NEED(n && f); *n = occ(f, b, d); return 0; }
EXP hipError_t hipModuleOccupancyMaxPotentialBlockSize(int *g, int *b, hipFunction_t f, size_t d, int lim) { API; NEED(g && b && f); *b = lim > 0 && lim < (int)f->maxwg ? lim : (int)f->maxwg; int o = occ(f, *b, d); *g = (o ? o : 1) * devs[cur].cus; return 0; }
EXP hipError_t hipModuleOccupancyMaxPotentialBlockSizeWithFlags(int *g, int *b, hipFunction_t f, size_t d, int lim, unsigned fl) { return hipModuleOccupancyMaxPotentialBlockSize(g, b, f, d, lim); }
EXP hipError_t hipProfilerStart(void) { API; return 0; }
EXP hipError_t hipProfilerStop(void) { API; return 0; }
/* ---------------------------------------------------------------- report: JSON */
EXP size_t vgpu_json(char *b, size_t n) {
  size_t k = 0; char t[8]; if (!b) { b = t; n = sizeof t; }
#define P(...) do { int r_ = snprintf(k < n ? b + k : t, k < n ? n - k : 0, __VA_ARGS__); k += r_; } while (0)
  pthread_mutex_lock(&qmu); pthread_mutex_lock(&mu); P("{\"devices\":[");
  for (int i = 0; i < ndev; i++) P("%s{\"arch\":\"%s\",\"name\":\"%s\",\"total\":%zu,\"other\":%zu,\"used\":%zu,\"peak\":%zu}", i ? "," : "", devs[i].arch, devs[i].name, devs[i].total, devs[i].other, devs[i].used, devs[i].peak);
  P("],\"calls\":{"); int c = 0; for (int i = 0; i < nfns; i++) if (fns[i].calls) P("%s\"%s\":%llu", c++ ? "," : "", fns[i].name, (unsigned long long)fns[i].calls);
  P("},\"live\":["); c = 0; for (int i = 0; i < nal + nreg; i++) { alloc *a = i < nal ? al[i] : reg_[i - nal]; if (!a->freed) P("%s{\"id\":%llu,\"ptr\":%llu,\"size\":%zu,\"dev\":%d,\"kind\":\"%s\"}", c++ ? "," : "", (unsigned long long)a->id, (unsigned long long)(u64)a->p, a->size, a->dev, kinds[a->kind]); }
  u64 pend = 0; for (hipStream_t s = streams; s; s = s->next) for (op *o = s->head; o; o = o->next) pend++; for (int d = 0; d < ndev; d++) for (op *o = nullst[d].head; o; o = o->next) pend++;
  P("],\"problems\":%llu,\"pending\":%llu,\"insts\":%llu,\"waves\":%llu,\"launches\":%llu,\"emu_seconds\":%.6f}", (unsigned long long)n_err, (unsigned long long)pend, (unsigned long long)insts, (unsigned long long)waves_run, (unsigned long long)launches, emu_s);
  pthread_mutex_unlock(&mu); pthread_mutex_unlock(&qmu); return k;
}
